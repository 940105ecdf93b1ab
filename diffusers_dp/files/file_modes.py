# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Permissions of written files: private to the owner, or as the user's umask allows. No torch.

The umask also covers other libraries, and processes that are started meanwhile.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
