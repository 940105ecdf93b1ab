# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases in a folder or on the Hub: fetched completely and verified. No torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import IntegrityError, UsageError
from ..files.file_modes import public_files
from ..files.hub_errors import one_sentence
from ..verify import RECEIPT_NAME, Unreadable, verify


def keep_downloads_in(folder: str | None) -> None:
    """Makes a folder the place of all that this process downloads; `None` leaves that of `huggingface_hub`, of which
    `datasets` asks what it downloads, too."""
    if folder is not None:
        from huggingface_hub import constants

        constants.HF_HUB_CACHE = os.path.abspath(os.path.expanduser(folder))


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
    folder, subject = Path(release), f"'{release}'" if flag is None else f"{flag} {release}"
    if os.path.exists(folder):  # `Path.exists` raises if a name is too long
        _refuse_run(folder, subject)
        if kind == "a release" and not any(
            os.path.isfile(folder / name) for name in (RECEIPT_NAME, "model_index.json")
        ):
            raise UsageError(f"{subject} holds no {RECEIPT_NAME}: give the folder of a release, or its Hub id.")
        return folder
    return fetch_snapshot(
        str(release), revision, kind=kind, files=files, subject=f"{subject}, which is not a folder here,",
        repo_types=("model", "dataset") if kind == "a release" else ("model",),
    )  # fmt: skip


def fetch_snapshot(
    name: str, revision: str | None = None, *, kind: str = "a release", files: Sequence[str] | None = None,
    token: bool | None = None, subject: str | None = None, repo_types: Sequence[str] = ("model",),
) -> Path:  # fmt: skip
    """Fetches a repository from the Hub and returns its folder; never uses a local folder of that name.

    Args:
        subject (`str`, *optional*): Subject of the sentence of an error, if it is not the name.
        repo_types (sequence of `str`): Kinds of repositories, in the order of the search.
        token (`bool`, *optional*): `False` requests without a token; see `fetch_release` for the other arguments.

    Raises:
        UsageError: The repository does not exist.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    patterns = None if files is None else list(files)
    with one_sentence(subject or f"'{name}'", kind):
        for repo_type in repo_types:
            try:
                return Path(snapshot_download(
                    name, repo_type=repo_type, revision=revision, allow_patterns=patterns, token=token
                ))  # fmt: skip
            except RepositoryNotFoundError as error:
                missing = error
        raise missing


def _refuse_run(folder: Path, subject: str) -> None:
    """Raises `UsageError` for the folder of a run, whose release lies in it."""
    if not os.path.isfile(folder / RECEIPT_NAME) and os.path.isfile(folder / "release" / RECEIPT_NAME):
        raise UsageError(f"{subject} is the folder of a run; give its release, {folder / 'release'}.")


def verify_here(folder: Path, flag: str = "") -> tuple[dict[str, Any], list[str]]:
    """Runs `verify` for a command; returns the receipt and a sentence for each mismatch.

    Raises:
        UsageError: The folder contains no release.
        IntegrityError: The receipt is damaged.
    """
    _refuse_run(folder, f"'{folder}'")
    try:
        return verify(folder)
    except Unreadable as error:
        is_damaged, named = error.exit_code == 4, f"{flag}: " if flag else ""
        remedy = "Restore the release first." if is_damaged else "Give the folder of a release."
        raise (IntegrityError if is_damaged else UsageError)(f"{named}{error} {remedy}") from None
