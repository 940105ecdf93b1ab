# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Permissions of written files: private to the owner, or as the user's umask allows. No torch.

The umask also covers other libraries, and processes that are started meanwhile.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


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
