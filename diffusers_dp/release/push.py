# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Uploads of a release, or of a dataset drawn from one, to the Hub: verified, only the allow-list, in one commit.

One commit makes the repository complete or empty. Large files are uploaded before the commit and not sent again if the
Hub has them: repeat an interrupted push with the same command. Only `huggingface_hub` reads the token.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import DiffusersDPError, IntegrityError, UsageError
from ..files.hub_errors import one_sentence
from ..verify import NO_CARD, RECEIPT_NAME, SIGNATURE_NAME, card_agrees, settled_digest
from .allow_list import CARD_AND_RECEIPT
from .hub import verify_here
from .loading import release_in


ADDED = {".gitattributes", SIGNATURE_NAME}  # by the Hub itself, and by hand after a push
IDENTITY = (RECEIPT_NAME, "sampling.json")  # files that identify a release or a dataset


def files_to_push(release: str | Path, files: Sequence[str] | None = None) -> list[str]:
    """Checks each file of a release and returns the names of all that would be uploaded.

    Args:
        release (`str` or `Path`): Folder of the release.
        files (sequence of `str`, *optional*): Allow-list of its artefact, see `Artefact.files`; defaults to that of
            the library's artefact of this kind. A receipt cannot extend it.

    Raises:
        UsageError: The folder contains no release.
        IntegrityError: The release does not match its receipt, or its card lacks the guarantee.
    """
    folder = Path(release)
    allowed = [*CARD_AND_RECEIPT, *(release_in(folder).files if files is None else files)]
    receipt, problems = verify_here(folder)
    missing = [name for name in allowed if not (folder / name).is_file()]
    stated = {file["name"] for file in receipt["files"]} if not problems else set()
    problems += [f"{name} is missing." for name in missing]
    problems += [f"{name} is none of a release's files." for name in sorted(stated - set(allowed))]
    if not problems and not card_agrees(folder, receipt):
        problems = [f"{NO_CARD}."]
    if problems:
        raise IntegrityError(
            f"{folder} is not pushed: {' '.join(dict.fromkeys(problems))} A release goes as it was built: take out "
            "what was added, and put back what was changed."
        )
    return allowed


def describe(folder: str | Path, names: Sequence[str], repo_id: str, private: bool) -> str:
    """Describes an upload for a dry run."""
    sizes = [Path(folder, name).stat().st_size for name in names]
    lines = [f"{size:>14,}  {name}" for name, size in zip(names, sizes, strict=True)]
    where = f"{repo_id} ({'private' if private else 'public'})"
    return "\n".join([f"to {where}, {sum(sizes):,} bytes:", *lines, "nothing else, and nothing was sent"])


def check_hub(repo_id: str, repo_type: str = "model", *, name_alone: bool = False) -> None:
    """Checks before a long run that a push can work: the name is valid, and the Hub knows the token.

    Args:
        repo_id (`str`), repo_type (`str`): The repository.
        name_alone (`bool`): Whether the Hub is not asked.

    Raises:
        UsageError: The push cannot work.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    with one_sentence(f"--hub_{repo_type}_id {repo_id}", f"a {repo_type}"):
        validate_repo_id(repo_id)
        if not name_alone:
            HfApi().whoami(token=True)


def push_release(
    release: str | Path, repo_id: str, *, private: bool = False, files: Sequence[str] | None = None
) -> str:
    """Uploads a release: a model, or images as a data set.

    Args:
        release (`str` or `Path`): Folder of the release.
        repo_id (`str`): `owner/name`, or `name` for a repository that you own.
        private (`bool`): Whether a new repository is private.
        files (sequence of `str`, *optional*): See `files_to_push`.

    Returns:
        `str`: Address of the repository.

    Raises:
        UsageError: The release or the token is missing, the name is already used for something else, or the Hub fails.
        IntegrityError: The release does not match its receipt.
    """
    names = files_to_push(release, files)
    repo_type = release_in(release).repo_type
    return push_folder(release, names, repo_id, repo_type=repo_type, private=private, flag="hub_model_id")


def push_folder(
    folder: str | Path,
    names: Sequence[str],
    repo_id: str,
    *,
    repo_type: str,
    private: bool,
    flag: str = "hub_dataset_id",
) -> str:
    """Uploads these files in one commit to a repository that is new, empty, or already has the same content.

    Raises:
        UsageError: See `push_release`.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download

    api, kind, flag = HfApi(), f"a {repo_type}", f"--{flag} {repo_id}"
    with one_sentence(flag, kind):
        address = api.create_repo(repo_id, repo_type=repo_type, private=private or None, exist_ok=True, token=True)
        repo_id = address.repo_id
        there = set(api.list_repo_files(repo_id, repo_type=repo_type, token=True)) - ADDED
        seen_by_all = private and not api.repo_info(repo_id, repo_type=repo_type, token=True).private
    if seen_by_all:
        raise UsageError(
            f"{flag} is a public repository already, and --hub_private_repo was asked for: give another name."
        )
    if there:
        with one_sentence(flag, kind):
            theirs = {
                name: _digest(hf_hub_download(repo_id, name, repo_type=repo_type, token=True))
                for name in there.intersection(IDENTITY)
            }
        ours = {name: _digest(Path(folder, name)) for name in IDENTITY if name in names}
        if theirs != ours or not there <= set(names):
            raise UsageError(f"{flag} is taken: it holds something else. Give another name.")
    operations = [CommitOperationAdd(name, str(Path(folder, name))) for name in names]
    with one_sentence(flag, kind):
        api.create_commit(
            repo_id, operations, commit_message="Release, with its privacy receipt", repo_type=repo_type, token=True
        )
    return str(address)


def push_finished(release: Path, repo_id: str, *, private: bool, files: Sequence[str] | None = None) -> str:
    """Uploads the release of a run by `push_release`. Returns its address.

    Raises:
        UsageError: The push failed. The local release is complete all the same.
    """
    try:
        return push_release(release, repo_id, private=private, files=files)
    except DiffusersDPError as error:
        again = f"`diffusers-dp push {release} --hub_model_id {repo_id}`"
        if files is not None and tuple(files) != release_in(release).files:
            again = f"`push_release({str(release)!r}, {repo_id!r}, files=...)` with the files of your artefact"
        raise type(error)(f"{error} {release} is finished: {again} tries again.") from None


def _digest(path: str | Path) -> str | None:
    """Hashes a JSON file; leaves out fields that may be added to a receipt later."""
    try:
        return settled_digest(json.loads(Path(path).read_bytes()))
    except (ValueError, AttributeError, TypeError):
        return None
