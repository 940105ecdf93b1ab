# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases that lie on the Hub. Nothing here loads torch."""

from pathlib import Path

from .errors import UsageError


# What a release consists of, and what a stranger's repository must not bring along: no pickles are fetched.
FILES = ["README.md", "*.json", "*.safetensors", "pipeline.py", "samples.png"]


def fetch_release(release: str) -> Path:
    """The folder of a release, from the Hub if there is none of that name here.

    Raises:
        UsageError: Neither is there.
    """
    folder = Path(release)
    if folder.exists():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(release, allow_patterns=FILES))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UsageError(
            f"'{release}' is not a folder here, and the Hub did not give it ({type(error).__name__}): give the path of a "
            "release, or log in if it is private."
        ) from None
