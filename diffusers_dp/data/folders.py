# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which files of a data folder count, and which of its folders are splits: the one walk of all readers. No torch."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import UsageError
from .values import in_nfc, is_unicode


#: Names, in lower case, that systems and programs give to their own folders and files, such as bins, previews, shadow
#: copies and backups. A name that starts with a dot or two underscores is one of theirs too.
SERVICE_NAMES = frozenset({
    "@eadir", "@tmp", "@sharebin", "@recycle", "@recently-snapshot", "@__thumb", "@transcode", "@qnap", "@syno",
    "#recycle", "#snapshot", "~snapshot", "$recycle.bin", "$extend", "recycler", "recycle.bin",
    "system volume information", "lost+found", "lost.dir", "trash-1000", "network trash folder", "temporary items",
    "thevolumesettingsfolder", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r",
    "[originals]", "_gsdata_", "_vti_cnf", "captureone", "node_modules",
})  # fmt: skip
_NUMBERED = re.compile(r"found\.\d{3}|network recycle bin( \d+)?|~\$.*|.*\.(lrdata|lrcat|photoslibrary)")
#: The words for a split that `datasets` knows (`datasets.data_files.SPLIT_KEYWORDS`).
SPLIT_WORDS = {
    "train": ("training", "train"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("testing", "test", "evaluation", "eval"),
}
#: What `datasets` lets stand beside such a word: an end of the name, or one of `-._ 0123456789`.
_SPLITS = {
    split: re.compile(rf"(.*[-._ 0-9])?({'|'.join(words)})(set|data)?([-._ 0-9].*)?", re.DOTALL)
    for split, words in SPLIT_WORDS.items()
}


def is_service(name: str) -> bool:
    """Whether a name below a data folder is that of a system or a program, in any case; nothing below it counts."""
    lower = name.lower()
    return lower.startswith((".", "__")) or lower in SERVICE_NAMES or _NUMBERED.fullmatch(lower) is not None


def files_below(root: Path) -> list[Path]:
    """
    Lists the regular files of a data folder at any depth that count as its own, sorted by path.

    Nothing counts in or under a name of `SERVICE_NAMES`; names above `root`, and its own, are never matched. Whether a
    file counts depends on its path alone, and on where that path leads:

    - A link to a file or a folder elsewhere counts, as what it leads to.
    - A link to what counts here already, to `root` or to a folder around it does not: one image would be two records,
      or a loop. A link into a service folder of `root` counts, because its target does not (git-annex, DVC).
    - Two links to one file elsewhere are two records, as two copies of an image are.

    Args:
        root (`Path`): Data folder.

    Returns:
        `list[Path]`: Paths that begin with `root`.

    Raises:
        `OSError`: A folder cannot be listed.
    """
    return sorted(path for path in _walk(root) if not is_service(path.name))


def service_entries(root: Path) -> list[Path]:
    """The uppermost files and folders of a data folder that `files_below` leaves out by their names, sorted."""
    return sorted(path for path in _walk(root) if is_service(path.name))


def subfolders(root: Path) -> list[Path]:
    """The folders in a data folder that count, and links to folders, sorted."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not is_service(path.name))


def split_of(name: str) -> str | None:
    """The split that a folder is called by, in any case: `Training`, `val2017`, `test-00-of-02`, `images_dev`."""
    return next((split for split, spelling in _SPLITS.items() if spelling.fullmatch(name.lower())), None)


def meant_split(wanted: str, known: Iterable[str]) -> str | None:
    """
    The split that a flag means.

    Args:
        wanted (`str`): Its name, or another spelling of it: `val` for `validation` or `Valid`.
        known (iterable of `str`): Names of the splits that exist.

    Returns:
        `str`, *optional*: One of these; `None` where none or several are called so.
    """
    spelled = [name for name in known if name == wanted or (split_of(name) or "") == split_of(wanted)]
    return wanted if wanted in spelled else spelled[0] if len(spelled) == 1 else None


def splits_in(root: Path) -> list[Path]:
    """The folders in a data folder, if each of them is called as a split is; otherwise none."""
    found = subfolders(root)
    return found if all(split_of(path.name) for path in found) else []


def class_folders(root: Path, field: str) -> tuple[str, ...]:
    """
    The classes of a folder of class folders, sorted: the names of its folders, in Unicode's composed form (NFC).

    Args:
        root (`Path`): Data folder.
        field (`str`): Flag that named it, for messages.

    Raises:
        `UsageError`: It cannot be listed, or its folders are splits, or a comma-separated list cannot hold a name.
    """
    if not os.path.isdir(root):  # `Path.is_dir` raises where a name is too long
        raise UsageError(f"{root} is not a folder; give one that holds a folder per class.", field=field)
    try:
        refuse_splits(root, field)
        names = sorted({in_nfc(path.name) for path in subfolders(root)})
    except OSError as error:
        raise UsageError(f"{root} cannot be read ({error.strerror}); make it readable.", field=field) from None
    odd = next((name for name in names if "," in name or name != name.strip() or not is_unicode(name)), None)
    if odd is not None:
        raise UsageError(
            f"{root} holds a folder '{odd}': no label set holds a comma, outer space or what is not UTF-8; rename it.",
            field=field,
        )
    return tuple(names)


def refuse_splits(root: Path, field: str) -> None:
    """
    Refuses to take splits for classes, or to merge the splits of each class.

    Args:
        root (`Path`): Folder of class folders.
        field (`str`): Flag that named it, for messages.

    Raises:
        `UsageError`: All its folders are called as splits are, or folders below it are, of two splits.
        `OSError`: A folder cannot be listed.
    """
    if splits := splits_in(root):
        raise _look_like_splits(root, splits, field, "", "rename those that are classes")
    refuse_inner_splits(root, field)


def refuse_some_splits(root: Path, field: str, class_names: Iterable[str]) -> None:
    """Refuses folders of two splits beside others (`train`, `test`, `masks`), unless they are declared classes: they
    would be merged, or taken for classes."""
    found = _two_splits(root)
    if found and not {in_nfc(path.name) for path in found} <= set(map(in_nfc, class_names)):
        remedy = "declare all folders by --class_names where they are classes"
        raise _look_like_splits(root, found, field, " beside others", remedy)


def _look_like_splits(root: Path, found: list[Path], field: str, beside: str, remedy: str) -> UsageError:
    meant = next((path for path in found if split_of(path.name) == "train"), found[0])
    listed = ", ".join(path.name for path in found)
    return UsageError(
        f"{root} holds folders that look like splits ({listed}){beside}; give {meant}, or {remedy}.", field=field
    )


def _two_splits(folder: Path) -> list[Path]:
    """The folders in a folder that are called as splits are, if they are of two splits or more."""
    found = [path for path in subfolders(folder) if split_of(path.name)]
    return found if len({split_of(path.name) for path in found}) > 1 else []


def refuse_inner_splits(root: Path, field: str) -> None:
    """The second half of `refuse_splits`: below `root`, folders of two splits would be merged."""
    folders = sorted({path.parent for path in files_below(root)} - {root})
    below = sorted({parent for path in folders for parent in path.parents if parent.is_relative_to(root)} - {root})
    inside = [path for parent in below for path in splits_in(parent) or _two_splits(parent)]
    if len({split_of(path.name) for path in inside}) > 1:
        listed = ", ".join(str(path.relative_to(root)) for path in inside[:4])
        raise UsageError(
            f"{root} holds folders in its classes that look like splits ({listed}), which are never merged; give a "
            "folder with one split of each class, or rename those that are none.",
            field=field,
        )


def _walk(root: Path) -> Iterator[Path]:
    """Regular files, and service files and folders, which it does not enter."""
    top = Path(os.path.realpath(root))
    pending: list[tuple[Path, tuple[Path, ...]]] = [(root, (top,))]  # a folder, and the real ones that led to it
    while pending:
        folder, places = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path, chain = folder / entry.name, (*places[:-1], places[-1] / entry.name)
                if is_service(entry.name):
                    yield path
                    continue
                if entry.is_symlink():
                    place = Path(os.path.realpath(path))
                    is_here = place.is_relative_to(top) and not any(map(is_service, place.relative_to(top).parts))
                    if is_here or any(passed.is_relative_to(place) for passed in places):
                        continue
                    chain = (*places, place)
                # `is_dir` and `is_file` of an entry raise where a link leads in a circle.
                if (path if entry.is_symlink() else entry).is_dir():
                    pending.append((path, chain))
                elif (path if entry.is_symlink() else entry).is_file():
                    yield path
