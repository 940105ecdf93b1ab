# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What flags declare of image files: which grey values are black and white, and which suffixes count. Loads no
torch."""

import math

from ..data.decoding import IMAGE_SUFFIXES, ValueRange
from ..data.medical import PACKAGES
from ..errors import UsageError
from .flag import split_list


def parse_range(value_range: str | None, window: str | None = None) -> ValueRange | None:
    """`--value_range`, or `--window`, as what is black and what is white.

    Raises:
        UsageError: It is no such range, or both are given.
    """
    if value_range is not None and window is not None:
        raise UsageError("--value_range and --window say the same; give one of them.")
    if window is not None:
        center, width = _two_numbers("window", window, "center and then width, such as 40,400")
        if width <= 0:
            raise UsageError(f"--window is '{window}'; give a width above 0, such as 40,400.")
        return center - width / 2, center + width / 2
    if value_range is None:
        return None
    remedy = "black and then white, such as 0,4095"
    black, white = _two_numbers("value_range", value_range, remedy)
    if black >= white:
        raise UsageError(f"--value_range is '{value_range}'; give two numbers, {remedy}.")
    return black, white


def _two_numbers(flag: str, text: str, remedy: str) -> tuple[float, float]:
    try:
        first, second = (float(item) for item in split_list(text))
        if not math.isfinite(first) or not math.isfinite(second):
            raise ValueError
    except ValueError:
        raise UsageError(f"--{flag} is '{text}'; give two numbers, {remedy}.") from None
    return first, second


def parse_suffixes(text: str | None) -> tuple[str, ...] | None:
    """`--image_suffixes`, in small letters and with their dots.

    Raises:
        UsageError: One of them is none that can be read.
    """
    if text is None:
        return None
    known = sorted({*IMAGE_SUFFIXES, *PACKAGES})
    suffixes = tuple(f".{item.lower().removeprefix('.')}" for item in split_list(text))
    unknown = [suffix for suffix in suffixes if suffix not in known]
    if unknown or not suffixes:
        raise UsageError(f"--image_suffixes is '{text}'; choose from {' '.join(known)}, comma-separated.")
    return suffixes
