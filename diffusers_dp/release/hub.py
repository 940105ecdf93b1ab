# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases that lie in a folder or on the Hub: fetched whole, verified, and only then loaded. torch is loaded with a
model alone."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IntegrityError, UsageError
from ..files.file_modes import public_files
from ..verify import (
    NO_CARD,
    RECEIPT_NAME,
    Damaged,
    Unreadable,
    about_delta,
    card_agrees,
    check_files,
    publishes_records,
    read_receipt,
    verify,
)
from .allow_list import dataset_index
from .components import WRONG, check_components, check_model, is_latent
from .image_tables import load_images


if TYPE_CHECKING:
    from datasets import Dataset

    from ..pipelines import DPImagePipeline

logger = logging.getLogger(__name__)


@public_files()  # what is downloaded is shared by all who use that cache
def fetch_release(
    release: str | Path,
    revision: str | None = None,
    *,
    kind: str = "a release",
    files: Sequence[str] | None = None,
    flag: str | None = None,
) -> Path:
    """The folder of a release: the whole snapshot from the Hub, if there is none of that name here.

    Args:
        release (`str` or `Path`): Folder, or Hub id.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.
        kind (`str`): What it is in words, where it is something else.
        files (sequence of `str`, *optional*): Patterns of the files to fetch, in place of all.
        flag (`str`, *optional*): That named it, for the message.

    Raises:
        UsageError: Neither is there.
    """
    folder = Path(release)
    if os.path.exists(folder):  # `Path.exists` raises where a name is too long
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
    """The folder of what the Hub has under this name; nothing of that name here stands in for it.

    Args:
        repo_types (sequence of `str`): Kinds of repositories, in the order in which they are looked for.
        token (`bool`, *optional*): `False` asks as a stranger would; see `fetch_release` for the others.

    Raises:
        UsageError: It is not there.
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
    except (LocalEntryNotFoundError, OSError):  # the Hub's other errors are OSErrors
        reason = f"the Hub could not be reached or did not give it: give the path of {kind}, or try again."
    named = f"'{name}'" if flag is None else f"{flag} {name}"
    # Nobody looks for a base here: its name is a stranger's, and the answer would tell what lies on this machine.
    raise UsageError(f"{named} {'was not fetched:' if kind == 'the base' else 'is not a folder here, and'} {reason}")


def intact_receipt(folder: Path, flag: str) -> dict[str, Any]:
    """The receipt of a release whose files are those that it lists, before something is added to it.

    Args:
        folder (`Path`): Of the release.
        flag (`str`): That named it.

    Raises:
        UsageError: The folder holds no release.
        IntegrityError: The release is not what its receipt says.
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
    """`verify` for a command that needs a release: the receipt, and a sentence for each mismatch.

    Raises:
        UsageError: The folder holds no release.
        IntegrityError: Its receipt is damaged.
    """
    try:
        return verify(folder)
    except Unreadable as error:
        raise (IntegrityError if error.exit_code == 4 else UsageError)(
            f"{error} Give the folder of a release."
        ) from None


def load_verified(
    release: str | Path,
    require_dp: bool = True,
    *,
    revision: str | None = None,
    base: str | Path | None = None,
    **arguments: Any,
) -> "DPImagePipeline | Dataset":
    """Fetches a release, verifies its receipt, and loads what it is: a pipeline, or images.

    Args:
        release (`str` or `Path`): Folder, or Hub id.
        require_dp (`bool`, defaults to `True`): `False` loads what does not match as well, with a warning for each
            mismatch.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.
        base (`str` or `Path`, *optional*): Folder of the base, where the release is adapters of one; else it is
            fetched from the Hub, by its commit. It is compared with the hashes in the release.
        arguments: Passed to `DPImagePipeline.from_pretrained` (`torch_dtype`, ...). Weights are safetensors, whatever
            is asked. Images and latent models take none.

    Returns:
        `DPImagePipeline`, on the CPU, or `datasets.Dataset` with the columns `image` and, with classes, `label`. What
        was verified is "numbers consistent, unsigned": see `verify`.

    Raises:
        IntegrityError: There is no receipt, a file or a hash or an epsilon differs from it, or it states no guarantee.
            Whatever `require_dp` is: the model is none of this library, or its configuration is not one of its weights
            (`components`). Or the base is another one.
        UsageError: There is no such folder, and no such repository; or the base is not to be had.
    """
    folder = fetch_release(release, revision)
    try:
        receipt, problems = verify(folder)
    except Unreadable as error:
        receipt, problems = {}, [str(error)]
    if problems and require_dp:
        raise IntegrityError(f"'{release}' was not loaded: {' '.join(problems)}")
    for problem in problems:
        logger.warning("'%s' is NOT verified, do not take it for private: %s", release, problem)
    if not problems and not card_agrees(folder, receipt):
        logger.warning("'%s': %s, so trust the receipt and not the card.", release, NO_CARD)
    outright = "" if problems else publishes_records(*about_delta(receipt))
    if outright:
        logger.warning("'%s': %s", release, outright)
    if dataset_index(folder) is not None:
        return load_images(str(release), folder)
    if is_latent(folder):
        from .latent_artefacts import load_latent

        return load_latent(folder, base)
    check_model(str(release), check_components(str(release), folder))
    from safetensors import SafetensorError

    from ..pipelines import DPImagePipeline

    try:
        return DPImagePipeline.from_pretrained(folder, **{**arguments, "use_safetensors": True})
    except SafetensorError:
        raise IntegrityError(f"'{release}' was not loaded: its weights are damaged.") from None
    except WRONG as error:
        if arguments:  # of the caller, who wants to see what is wrong with them
            raise
        raise IntegrityError(f"'{release}' was not loaded: {type(error).__name__} in its files.") from None


def load_model(release: str | Path, require_dp: bool = True, *, base: str | Path | None = None) -> "DPImagePipeline":
    """`load_verified` for what draws.

    Raises:
        UsageError, IntegrityError: As there; or it is a release of images.
    """
    loaded = load_verified(release, require_dp, base=base)
    from datasets import Dataset

    if isinstance(loaded, Dataset):
        raise UsageError(
            f"'{release}' is a release of images, and no model that draws: `datasets.load_dataset` reads them, and "
            "`diffusers-dp evaluate --images` judges them."
        )
    return loaded
