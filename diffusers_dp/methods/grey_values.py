# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What flags declare of image files: which grey values are black and white, and which suffixes count. Loads no
torch."""

from typing import Any

from ..data.decoding import IMAGE_SUFFIXES, ValueRange
from ..data.medical import PACKAGES
from .flag import LARGEST, numbers, split_list


SUFFIXES = sorted({*IMAGE_SUFFIXES, *PACKAGES})


def read_range(text: str) -> ValueRange:
    """Black and then white. Raises `ValueError`."""
    black, white = numbers(text)
    if not black < white:
        raise ValueError(text)
    return black, white


def read_window(text: str) -> ValueRange:
    """The same of center and width. Raises `ValueError`."""
    center, width = numbers(text)
    return read_range(f"{center - width / 2!r},{center + width / 2!r}")


def read_suffixes(text: str) -> tuple[str, ...]:
    """Suffixes of files, in small letters and with their dots."""
    return tuple(f".{item.lower().removeprefix('.')}" for item in split_list(text))


#: What flags say that hold these.
RANGE: dict[str, Any] = {
    "read": read_range, "at_least": -LARGEST, "range": "two numbers, black and then white, such as 0,4095",
}  # fmt: skip
WINDOW: dict[str, Any] = {
    "read": read_window, "at_least": -LARGEST, "excludes": ("value_range",),
    "range": "two numbers, center and then a width above 0, such as 40,400",
}  # fmt: skip
KNOWN: dict[str, Any] = {
    "read": read_suffixes, "choices": tuple(SUFFIXES), "range": f"some of {' '.join(SUFFIXES)}, comma-separated",
}  # fmt: skip


def range_of(value_range: str | None, window: str | None) -> ValueRange | None:
    """What `--value_range`, or `--window`, declares."""
    if window is not None:
        return read_window(window)
    return None if value_range is None else read_range(value_range)
