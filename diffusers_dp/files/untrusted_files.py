# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Files of a stranger: only regular ones are read, of a bounded size, and in their own folder. No torch."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def regular_size(path: str | Path) -> int:
    """Bytes of a file. Raises `OSError` for a pipe, a device or a folder: reading it may never end."""
    return _size(os.stat(path))


def read_bounded(path: str | Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises `OSError` or `ValueError`."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # opening a pipe waits, too
        content = file.read(most + 1) if _size(os.fstat(file.fileno())) <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def _size(found: os.stat_result) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    return found.st_size


def is_own(folder: Path, path: Path) -> bool:
    """Whether a file lies in a folder, or is a link that stays there. In the Hub's cache the files of a snapshot are
    links to `blobs`."""
    real, root = path.resolve(), folder.resolve()
    return real.is_relative_to(root) or real.parent == root.parent.parent / "blobs"


def foreign_entries(folder: Path) -> Iterator[str]:
    """One clause for each entry, at any depth, that is neither a regular file nor a folder, or leads elsewhere."""
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path, name = Path(entry.path), os.path.relpath(entry.path, folder)
                if entry.is_symlink() and not is_own(folder, path):
                    yield f"{name} is a link to elsewhere"
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif not entry.is_file():
                    yield f"{name} is no regular file"
