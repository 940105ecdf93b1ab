# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases that lie in a folder or on the Hub: fetched whole, verified, and only then loaded. torch is loaded with a model alone."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import IntegrityError, UsageError
from .verify import Unreadable, verify


if TYPE_CHECKING:
    from .pipelines import DPImagePipeline

logger = logging.getLogger(__name__)


def fetch_release(release: str | Path, revision: str | None = None) -> Path:
    """The folder of a release: the whole snapshot from the Hub, if there is none of that name here.

    Args:
        release (`str` or `Path`): Folder, or Hub id.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.

    Raises:
        UsageError: Neither is there.
    """
    folder = Path(release)
    if folder.exists():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(release), revision=revision))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UsageError(
            f"'{release}' is not a folder here, and the Hub did not give it ({type(error).__name__}): give the path of a "
            "release, or log in if it is private."
        ) from None


def load_verified(
    release: str | Path, require_dp: bool = True, *, revision: str | None = None, **arguments: Any
) -> "DPImagePipeline":
    """Fetches a release, verifies its receipt, and loads the pipeline.

    Args:
        release (`str` or `Path`): Folder, or Hub id.
        require_dp (`bool`, defaults to `True`): `False` loads what does not match as well, with a warning for each mismatch.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.
        arguments: Passed to `DPImagePipeline.from_pretrained` (`torch_dtype`, ...). Weights are safetensors, whatever is asked.

    Returns:
        `DPImagePipeline`: On the CPU. What was verified is "numbers consistent, unsigned": see `verify`.

    Raises:
        IntegrityError: There is no receipt, a file or a hash or an epsilon differs from it, or it states no guarantee.
        UsageError: There is no such folder, and no such repository.
    """
    folder = fetch_release(release, revision)
    try:
        problems = verify(folder)[1]
    except Unreadable as error:
        problems = [str(error)]
    if problems and require_dp:
        raise IntegrityError(f"'{release}' was not loaded: {' '.join(problems)}")
    for problem in problems:
        logger.warning("'%s' is NOT verified, do not take it for private: %s", release, problem)
    from .pipelines import DPImagePipeline

    return DPImagePipeline.from_pretrained(folder, **{**arguments, "use_safetensors": True})
