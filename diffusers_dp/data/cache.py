# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Decoded images on disk, as uint8: written once, part by part, and read as memory maps, so that more of them need
more disk and no more memory.

The cache is a folder of `.npy` files that is there whole or not at all. It holds the private images, and stays with
them.
"""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
from numpy.lib.format import open_memmap, write_array_header_1_0

from ..errors import IntegrityError, UsageError
from ..files.journal import put_in_place


STATE_FILE = "state.json"
_VERSION = 2


def fingerprint(made_of: Any) -> str:
    """Of all that decides what the decoded images are, a JSON value; the version of Pillow is added."""
    return hashlib.sha256(json.dumps([_VERSION, PIL.__version__, made_of], sort_keys=True).encode()).hexdigest()


def open_cache(folder: Path, made_of: str) -> dict[str, np.ndarray] | None:
    """
    The arrays of a cache, mapped into memory and read-only.

    Sizes are compared, contents are not: hashing them would read every image at each start.

    Args:
        folder (`Path`): The cache.
        made_of (`str`): The [`fingerprint`] of what is wanted.

    Returns:
        `dict[str, np.ndarray]` or `None`: By name; `None` if there is no cache, or one of something else.

    Raises:
        IntegrityError: A file of the cache is missing, is not as long as it was, or has another header.
    """
    if not folder.exists():
        return None
    try:
        state = json.loads((folder / STATE_FILE).read_bytes())
        found, sizes = state["made_of"], dict(state["bytes"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise damaged(folder / STATE_FILE) from None
    if found != made_of:
        return None
    for name, size in sizes.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise damaged(folder / name)
    return {name.removesuffix(".npy"): _map(folder / name) for name in sizes}


def _map(path: Path) -> np.ndarray:
    try:
        return open_memmap(path, mode="r")
    except Exception:  # a header is parsed as Python: a damaged one raises almost anything
        raise damaged(path) from None


def damaged(path: Path) -> IntegrityError:
    return IntegrityError(f"{path} is missing or damaged; remove {path.parent}, and the images are decoded anew.")


@contextmanager
def new_cache(folder: Path, made_of: str, num_bytes: int) -> Iterator[Path]:
    """
    Makes a cache of the `.npy` files that are written into the folder that this yields, in the place of an older
    cache.

    Args:
        folder (`Path`): The cache.
        made_of (`str`): Its [`fingerprint`].
        num_bytes (`int`): How much is going to be written.

    Raises:
        UsageError: The disk cannot take it.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    with full_disk_is_said(folder.parent, f"decoded images, {num_bytes / 1e9:.3g} GB", "or choose another folder"):
        try:
            for stale in (folder, temporary):
                if stale.exists():
                    shutil.rmtree(stale)
            temporary.mkdir(parents=True)
            refuse_full_disk(temporary, num_bytes)
            yield temporary
            finish_cache(temporary, folder, made_of)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def full_disk_is_said(place: Path, what: str, remedy: str) -> Iterator[None]:
    """Turns an `OSError` of a folder that is written into a `UsageError`."""
    try:
        yield
    except BrokenPipeError:  # of who reads the bar
        raise
    except OSError as error:
        raise UsageError(
            f"{place} cannot take the {what} ({error.strerror}); make room on that disk, {remedy}."
        ) from None


def refuse_full_disk(folder: Path, num_bytes: int) -> None:
    """Raises `OSError` where the disk has less room."""
    if shutil.disk_usage(folder).free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def finish_cache(temporary: Path, folder: Path, made_of: str) -> None:
    """Gives a folder of whole `.npy` files the name of the cache, in the place of an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    sizes = {path.name: path.stat().st_size for path in sorted(temporary.glob("*.npy"))}
    (temporary / STATE_FILE).write_text(json.dumps({"made_of": made_of, "bytes": sizes}, indent=2))
    put_in_place(temporary, folder)


def new_npy(path: Path, dtype: str, *shape: int, rows: int = 0) -> BinaryIO:
    """A `.npy` file of this shape and `dtype` (as in `np.dtype.str`), open behind the first `rows` that it has."""
    file = open(path, "r+b" if rows else "wb")
    write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    file.seek(rows * math.prod(shape[1:]) * np.dtype(dtype).itemsize, os.SEEK_CUR)
    file.truncate()
    return file
