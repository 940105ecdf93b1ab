# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases in a folder or on the Hub: fetched completely and verified. No torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import IntegrityError, UsageError
from ..files.file_modes import public_files
from ..verify import Damaged, Unreadable, check_files, read_receipt, verify
from ..words import RECEIPT_NAME


@public_files()  # downloads are shared by all users of the cache
def fetch_release(
    release: str | Path,
    revision: str | None = None,
    *,
    kind: str = "a release",
    files: Sequence[str] | None = None,
    flag: str | None = None,
) -> Path:
    """Returns the folder of a release; fetches the whole snapshot from the Hub if there is no local folder.

    Args:
        release (`str` or `Path`): Folder, or Hub id.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.
        kind (`str`): Description for messages, if it is not a release.
        files (sequence of `str`, *optional*): Patterns of the files to fetch; defaults to all.
        flag (`str`, *optional*): Flag that named it, for the message.

    Raises:
        UsageError: Neither the folder nor the repository exists.
    """
    folder = Path(release)
    if os.path.exists(folder):  # `Path.exists` raises if a name is too long
        if not os.path.isfile(folder / RECEIPT_NAME) and os.path.isfile(folder / "release" / RECEIPT_NAME):
            named = folder if flag is None else f"{flag} {folder}"
            raise UsageError(f"{named} is the folder of a run; give its release, {folder / 'release'}.")
        return folder
    return fetch_snapshot(
        str(release), revision, kind=kind, files=files, flag=flag,
        repo_types=("model", "dataset") if kind == "a release" else ("model",),
    )  # fmt: skip


def fetch_snapshot(
    name: str,
    revision: str | None = None,
    *,
    kind: str = "a release",
    files: Sequence[str] | None = None,
    token: bool | None = None,
    flag: str | None = None,
    repo_types: Sequence[str] = ("model",),
) -> Path:
    """Fetches a repository from the Hub and returns its folder; never uses a local folder of that name.

    Args:
        repo_types (sequence of `str`): Kinds of repositories, in the order of the search.
        token (`bool`, *optional*): `False` requests without a token; see `fetch_release` for the other arguments.

    Raises:
        UsageError: The repository does not exist.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    patterns, missing = None if files is None else list(files), None
    try:
        for repo_type in repo_types:
            try:
                return Path(snapshot_download(
                    name, repo_type=repo_type, revision=revision, allow_patterns=patterns, token=token
                ))  # fmt: skip
            except RepositoryNotFoundError as error:
                missing = error
        assert missing is not None
        raise missing
    except HFValidationError:
        reason = f"it cannot be a name on the Hub: give the path of {kind}."
    except RepositoryNotFoundError:
        what = " or ".join(repo_types)
        reason = f"the Hub has no {what} of that name for you: give the path of {kind}, or log in if it is private."
    except RevisionNotFoundError:
        reason = f"the Hub has no revision {revision} of it: give another."
    except (LocalEntryNotFoundError, OSError):  # other errors of the Hub are OSErrors
        reason = f"the Hub could not be reached or did not give it: give the path of {kind}, or try again."
    named = f"'{name}'" if flag is None else f"{flag} {name}"
    # Nobody looks for a base here: its name is a stranger's, and the answer would tell what lies on this machine.
    raise UsageError(f"{named} {'was not fetched:' if kind == 'the base' else 'is not a folder here, and'} {reason}")


def intact_receipt(folder: Path, flag: str) -> dict[str, Any]:
    """Reads the receipt of a release after checking its files against it, before anything is added to it.

    Args:
        folder (`Path`): Folder of the release.
        flag (`str`): Flag that named it.

    Raises:
        UsageError: The folder contains no release.
        IntegrityError: The release does not match its receipt.
    """
    try:
        receipt = read_receipt(folder)
    except Damaged as error:
        raise IntegrityError(f"{flag}: {error} Restore the release first.") from None
    except Unreadable as error:
        raise UsageError(f"{flag}: {error} Give the folder of a release.") from None
    problem = next(check_files(folder, receipt), None)
    if problem is not None:
        raise IntegrityError(f"{flag} {folder}: {problem} Restore the release first.")
    return receipt


def verify_here(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Runs `verify` for a command; returns the receipt and a sentence for each mismatch.

    Raises:
        UsageError: The folder contains no release.
        IntegrityError: The receipt is damaged.
    """
    try:
        return verify(folder)
    except Unreadable as error:
        raise (IntegrityError if error.exit_code == 4 else UsageError)(
            f"{error} Give the folder of a release."
        ) from None
