# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Who can read what is written: its owner alone, or whom the umask of the user allows. No torch.

The umask holds for whoever writes, other libraries and processes that are started meanwhile included.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


_ordinary: int | None = None  # the umask of the user, within `private_files`


@contextmanager
def private_files() -> Iterator[None]:
    """Files that are made in here have mode 600, and folders 700, whatever the umask of the user is; also a
    decorator."""
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
    """Files that are made in here have the modes that the umask of the user gives them, also within `private_files`;
    also a decorator."""
    if _ordinary is None:
        yield
        return
    before = os.umask(_ordinary)
    try:
        yield
    finally:
        os.umask(before)
