# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the Hub answers when it refuses, in one sentence with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UsageError


@contextmanager
def one_sentence(subject: str, kind: str) -> Iterator[None]:
    """Turns an error of `huggingface_hub` into a `UsageError`.

    Args:
        subject (`str`): What was asked for, as the sentence names it: a flag with its value, or a name in quotes.
        kind (`str`): What it is on the Hub: `a model`, `a dataset`.

    Raises:
        UsageError: The Hub refused, or cannot be reached.
    """
    from huggingface_hub import errors

    transport: Any = errors.HfHubHTTPError.__mro__[1]  # of the HTTP library, which is another one in each version
    try:
        yield
    except errors.HFValidationError:
        reason = "cannot be a name on the Hub: give one like owner/name."
    except errors.LocalTokenNotFoundError:
        reason = "needs a token of the Hub: log in with `hf auth login`."
    except errors.OfflineModeIsEnabled:
        reason = "is on the Hub, and HF_HUB_OFFLINE forbids to ask it: unset that."
    except errors.RepositoryNotFoundError:
        reason = (
            f"is no folder here, and no name of {kind} on the Hub that you may see: look at the spelling, or log in "
            "if it is private."
        )
    except errors.HfHubHTTPError as error:
        reason = _status(error, kind)
    except (transport, OSError, RuntimeError):  # RuntimeError: a large file of an upload
        reason = "could not be asked of the Hub, which was not reached or broke off: try again."
    else:
        return
    raise UsageError(f"{subject} {reason}")


def _status(error: Exception, kind: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return "was refused, for the Hub does not know your token: log in with `hf auth login`."
    if status == 403:
        return "was refused: your token may not write there, so give a name of your own or a token that may write."
    if status == 409:
        return f"is the name of {kind} already: give another."
    return f"failed, for the Hub answered with {status}: try again."
