# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release, or a dataset that was drawn from one, to the Hub: verified first, the allow-list alone, in one commit.

One commit makes a repository hold all of it or nothing. Large files go up before the commit, and what the Hub has of
them already is not sent again: a push that broke off goes on with the same command. The token is read by
`huggingface_hub` alone.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import DiffusersDPError, IntegrityError, UsageError
from ..files.hub_errors import one_sentence
from ..verify import NO_CARD, SIGNATURE_NAME, card_agrees, settled_digest
from .allow_list import CARD_AND_RECEIPT, OPTIONAL_FILES, RELEASE_FILES, dataset_index, files_of
from .hub import verify_here
from .receipt import RECEIPT_NAME
from .signing import signature_fits


HUB_FILE = ".gitattributes"  # which the Hub writes itself
IDENTITY = (RECEIPT_NAME, "sampling.json")  # what makes a release, or a dataset, the one that it is


def files_to_push(release: str | Path, files: Sequence[str] | None = None) -> list[str]:
    """The names of a release's files, after a look at each: all that would go.

    Args:
        release (`str` or `Path`): Folder.
        files (sequence of `str`, *optional*): The allow-list of its artefact, see `Artefact.files`; by default that of
            the library's own of that kind. A receipt cannot widen it.

    Raises:
        UsageError: The folder holds no release.
        IntegrityError: It is not what its receipt says, or its card lacks the guarantee.
    """
    folder = Path(release)
    allowed = [*CARD_AND_RECEIPT, *(files_of(folder) if files is None else files)]
    receipt, problems = verify_here(folder)
    missing = [name for name in allowed if not (folder / name).is_file()]
    stated = {file["name"] for file in receipt["files"]} if not problems else set()
    problems += [f"{name} is missing." for name in missing]
    problems += [f"{name} is none of a release's files." for name in sorted(stated - set(allowed))]
    if not problems and not card_agrees(folder, receipt):
        problems = [f"{NO_CARD}."]
    signed = [name for name in OPTIONAL_FILES if os.path.lexists(folder / name)]
    if signed and not problems and not signature_fits(folder, receipt):
        problems = [f"{SIGNATURE_NAME} is no signature of this receipt: sign it again, or remove it."]
    if problems:
        raise IntegrityError(
            f"{folder} is not pushed: {' '.join(dict.fromkeys(problems))} A release goes as it was built: take out "
            "what was added, and put back what was changed."
        )
    return [*allowed, *signed]


def describe(folder: str | Path, names: Sequence[str], repo_id: str, private: bool) -> str:
    """What would go where, for a dry run."""
    sizes = [Path(folder, name).stat().st_size for name in names]
    lines = [f"{size:>14,}  {name}" for name, size in zip(names, sizes, strict=True)]
    where = f"{repo_id} ({'private' if private else 'public'})"
    return "\n".join([f"to {where}, {sum(sizes):,} bytes:", *lines, "nothing else, and nothing was sent"])


def check_hub(repo_id: str, repo_type: str = "model") -> None:
    """Whether a push can work at all, asked before a long run: the name is one, and the Hub knows the token.

    Raises:
        UsageError: No.
    """
    from huggingface_hub import HfApi

    check_name(repo_id, repo_type)
    with one_sentence(f"--hub_{repo_type}_id {repo_id}", f"a {repo_type}"):
        HfApi().whoami(token=True)


def check_name(repo_id: str, repo_type: str = "model") -> None:
    """Raises `UsageError` where nothing on the Hub can have this name."""
    from huggingface_hub.utils import validate_repo_id

    with one_sentence(f"--hub_{repo_type}_id {repo_id}", f"a {repo_type}"):
        validate_repo_id(repo_id)


def push_release(
    release: str | Path, repo_id: str, *, private: bool = False, files: Sequence[str] | None = None
) -> str:
    """Uploads a release: a model, or images as a data set.

    Args:
        release (`str` or `Path`): Folder.
        repo_id (`str`): `owner/name`, or `name` for one of your own.
        private (`bool`): Whether a new repository is for its owners alone.
        files (sequence of `str`, *optional*): See `files_to_push`.

    Returns:
        `str`: Its address.

    Raises:
        UsageError: There is no release, no token, the name is taken by something else, or the Hub fails.
        IntegrityError: The release is not what its receipt says.
    """
    names = files_to_push(release, files)
    repo_type = "model" if dataset_index(release) is None else "dataset"
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
    """Uploads these files, in one commit, into a repository that is new, empty, or holds the same already.

    Raises:
        UsageError: See `push_release`.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api, kind, flag = HfApi(), f"a {repo_type}", f"--{flag} {repo_id}"
    with one_sentence(flag, kind):
        address = api.create_repo(repo_id, repo_type=repo_type, private=private or None, exist_ok=True, token=True)
        repo_id = address.repo_id
        there = set(api.list_repo_files(repo_id, repo_type=repo_type, token=True)) - {HUB_FILE, *OPTIONAL_FILES}
        seen_by_all = private and not api.repo_info(repo_id, repo_type=repo_type, token=True).private
    if seen_by_all:
        raise UsageError(
            f"{flag} is a public repository already, and --hub_private_repo was asked for: give another name."
        )
    if there:
        with one_sentence(flag, kind):
            same = there <= set(names) and all(
                _digest(_fetched(repo_id, name, repo_type)) == _digest(Path(folder, name))
                for name in names
                if name in IDENTITY
            )
        if not same:
            raise UsageError(f"{flag} is taken: it holds something else. Give another name.")
    operations = [CommitOperationAdd(name, str(Path(folder, name))) for name in names]
    with one_sentence(flag, kind):
        api.create_commit(
            repo_id, operations, commit_message="Release, with its privacy receipt", repo_type=repo_type, token=True
        )
    return str(address)


def prepare_push(repo_id: str, *, private: bool, dry_run: bool) -> None:
    """Of a training run with `--push_to_hub`, before an image is read. A dry run lists what would go. A run makes sure
    that the Hub will take it, for a push that cannot work should not show after hours.

    Raises:
        UsageError: See `check_hub`.
    """
    check_name(repo_id)
    if dry_run:
        visibility = "private" if private else "public"
        print(
            f"to {repo_id} ({visibility}) would go: {', '.join(RELEASE_FILES)} (or, in place of a pipeline's files, "
            "those of images, or of an artefact of your own); nothing was sent"
        )
        return
    check_hub(repo_id)


def push_finished(release: Path, repo_id: str, *, private: bool, files: Sequence[str] | None = None) -> str:
    """Uploads what a run released, as `push_release` does. Returns its address.

    Raises:
        UsageError: It did not work. The release is there all the same.
    """
    try:
        return push_release(release, repo_id, private=private, files=files)
    except DiffusersDPError as error:
        again = f"`diffusers-dp push {release} --hub_model_id {repo_id}`"
        if files is not None and tuple(files) != files_of(release):
            again = f"`push_release({str(release)!r}, {repo_id!r}, files=...)` with the files of your artefact"
        raise type(error)(f"{error} {release} is finished: {again} tries again.") from None


def _fetched(repo_id: str, name: str, repo_type: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(repo_id, name, repo_type=repo_type, token=True))
    except EntryNotFoundError:
        return None


def _digest(path: Path | None) -> str | None:
    """Of a JSON file; of a receipt without what may be added to one later."""
    try:
        return None if path is None else settled_digest(json.loads(path.read_bytes()))
    except (ValueError, AttributeError, TypeError):
        return None
