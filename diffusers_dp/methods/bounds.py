# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images that are too many: refused before anything is read or spent."""

from ..errors import UsageError
from .flag import MOST


BYTES = 4  # of a value of an image that is made, at least


def check_images(flag: str, value: int, classes: int, values_of_an_image: int, free: int | None) -> None:
    """That a release can hold the images that are made, and this machine.

    Args:
        flag (`str`), value (`int`): That says how many.
        classes (`int`): Number of classes, each of which gets as many images.
        values_of_an_image (`int`): Channels times pixels.
        free (`int`, *optional*): Bytes of memory; `None` where another machine may make them.

    Raises:
        UsageError: They are too many.
    """
    number = value * classes
    what = f"--{flag} {value} makes {number:,} images{f' of {classes} classes' if classes > 1 else ''}"
    if number > MOST:
        raise UsageError(f"{what}; give fewer, so that there are at most {MOST:,}.")
    needed = number * values_of_an_image * BYTES
    if free is not None and needed > free:
        raise UsageError(f"{what}, which take {needed / 1e9:,.1f} GB of memory, more than is free here; give fewer.")
