# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Permissions of written files: private to the owner, or as the user's umask allows. No torch.

The umask also covers other libraries, and processes that are started meanwhile.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UsageError


_ordinary: int | None = None  # the user's umask, within `private_files`


@contextmanager
def private_files() -> Iterator[None]:
    """Creates files with mode 600 and folders with mode 700, whatever the user's umask is; also a decorator."""
    global _ordinary
    before, outer = os.umask(0o077), _ordinary
    _ordinary = before if outer is None else outer
    try:
        yield
    finally:
        os.umask(before)
        _ordinary = outer


def give_ordinary_modes(folder: Path) -> None:
    """All in a folder, and itself, gets the mode that the umask gives new files and folders: some libraries write
    what only its owner can read."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


@contextmanager
def public_files() -> Iterator[None]:
    """Creates files and folders with the user's umask, even within `private_files`; also a decorator."""
    if _ordinary is None:
        yield
        return
    before = os.umask(_ordinary)
    try:
        yield
    finally:
        os.umask(before)


def refuse_unwritable(place: Path, flag: str) -> None:
    """Raises `UsageError` where no folder can be made, or nothing written in one that exists."""
    nearest = next(folder for folder in (place, *place.absolute().parents) if os.path.exists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = os.strerror(errno.EACCES if nearest.is_dir() else errno.ENOTDIR)
        raise UsageError(f"{flag} {place} cannot be used: {reason}; give another folder.")
