# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which files of a data folder count, and which of its folders are splits: the one walk of all readers. No torch."""

import os
import re
from collections.abc import Iterator
from pathlib import Path


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
    return sorted(path for path in _walk(root) if path.is_file() and not is_service(path.name))


def service_entries(root: Path) -> list[Path]:
    """The uppermost files and folders of a data folder that `files_below` leaves out by their names, sorted."""
    return sorted(path for path in _walk(root) if is_service(path.name))


def subfolders(root: Path) -> list[Path]:
    """The folders in a data folder that count, and links to folders, sorted."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not is_service(path.name))


def split_of(name: str) -> str | None:
    """The split that a folder is called by, in any case: `Training`, `val2017`, `test-00-of-02`, `images_dev`."""
    return next((split for split, spelling in _SPLITS.items() if spelling.fullmatch(name.lower())), None)


def splits_in(root: Path) -> list[Path]:
    """The folders in a data folder, if each of them is called as a split is; otherwise none."""
    found = subfolders(root)
    return found if all(split_of(path.name) for path in found) else []


def _walk(root: Path) -> Iterator[Path]:
    """Files, and service files and folders, which it does not enter."""
    top = Path(os.path.realpath(root))
    pending: list[tuple[Path, tuple[Path, ...]]] = [(root, (top,))]  # a folder, and the real ones that led to it
    while pending:
        folder, places = pending.pop()
        for path in folder.iterdir():
            if is_service(path.name):
                yield path
                continue
            place = places[-1] / path.name
            if path.is_symlink():
                place = Path(os.path.realpath(path))
                if _counts_here(place, top) or any(passed.is_relative_to(place) for passed in places):
                    continue
                chain = (*places, place)
            else:
                chain = (*places[:-1], place)
            if path.is_dir():
                pending.append((path, chain))
            else:
                yield path


def _counts_here(place: Path, top: Path) -> bool:
    return place.is_relative_to(top) and not any(map(is_service, place.relative_to(top).parts))
