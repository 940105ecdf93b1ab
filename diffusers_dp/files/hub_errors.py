# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Errors of the Hub, each in one sentence with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UsageError


@contextmanager
def one_sentence(subject: str, kind: str) -> Iterator[None]:
    """Turns an error of `huggingface_hub` into a `UsageError`.

    Args:
        subject (`str`): Subject of the sentence: a flag with its value, or a name in quotes.
        kind (`str`): Kind of repository: `a model`, `a dataset`.

    Raises:
        UsageError: The Hub refused, or cannot be reached.
    """
    from huggingface_hub import errors

    transport: Any = errors.HfHubHTTPError.__mro__[1]  # base error of the HTTP library, which depends on the version
    try:
        yield
    except errors.HFValidationError:
        reason = "cannot be a name on the Hub: give one like owner/name."
    except errors.LocalTokenNotFoundError:
        reason = "needs a Hub token: log in with `hf auth login`."
    except errors.OfflineModeIsEnabled:
        reason = "cannot be looked up on the Hub, because HF_HUB_OFFLINE forbids requests: unset it."
    except errors.RepositoryNotFoundError:
        reason = f"is not {kind} on the Hub that you can access: check the spelling, or log in if it is private."
    except errors.RevisionNotFoundError:
        reason = "has no such revision on the Hub: give another."
    except errors.HfHubHTTPError as error:
        reason = _status(error, kind)
    except (transport, OSError, RuntimeError):  # RuntimeError: upload of a large file
        reason = "failed because the Hub could not be reached or the connection broke: try again."
    else:
        return
    raise UsageError(f"{subject} {reason}")


def _status(error: Exception, kind: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    known: dict[Any, str] = {
        401: "was refused because the Hub does not know your token: log in with `hf auth login`.",
        403: "was refused: your token may not write there. Give a name that you own, or a token with write access.",
        409: f"is already the name of {kind}: give another.",
    }
    return known.get(status, f"failed because the Hub answered with status {status}: try again.")
