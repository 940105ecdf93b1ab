# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Files of a stranger: only regular ones are read, of a bounded size, and in their own folder. No torch."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def regular_size(path: Path) -> int:
    """Bytes of a file. Raises `OSError` for what is none, such as a pipe or a device, which would never end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no file.")
    return found.st_size


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises `OSError` or `ValueError`."""
    if regular_size(path) > most:
        raise ValueError(f"{path} has more than {most} bytes.")
    return path.read_bytes()


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
