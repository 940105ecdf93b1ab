# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Numbers that no run needs, and names that no file can have: refused before anything is read or spent."""

import math
import os
from collections.abc import Mapping
from typing import Any

from ..errors import UsageError


#: Of what is counted: images, steps, features. A release holds no more images, and its receipt no more steps.
MOST = 10_000_000
#: Of some flags it is less, or more: pixels of a side that `load_verified` takes, steps that DDIM has.
MOST_OF = {
    "resolution": 4_096, "num_inference_steps": 1_000, "auxiliary_inference_steps": 1_000,
    "generator_inference_steps": 1_000, "seed": 2**32 - 1,  # numpy takes no larger one
    "max_image_pixels": 2**40, "num_train_images": 10**12,
    "num_train_units": 10**12,
}  # fmt: skip
LARGEST = 1e9  # of a number that is not counted
BYTES = 4  # of a value of an image that is made, at least
#: Flags that name a file or a folder, or that may.
PLACES = (
    "output_dir", "ledger_dir", "dataset_name", "train_data_dir", "public_dataset_name", "public_data_dir",
    "pretrained_model_name_or_path", "feature_network", "stopping_network", "semantic_query_network",
    "embedding_network", "font_dir", "resume_from_checkpoint",
)  # fmt: skip


def check_finite(flags: Mapping[str, Any]) -> None:
    """Raises `UsageError` where a number is none, or not finite, or larger than any run needs."""
    for name, value in flags.items():
        if isinstance(value, float) and not abs(value) <= LARGEST and (name, value) != ("target_epsilon", math.inf):
            raise UsageError(f"--{name} is {value}; give a finite number of at most {LARGEST:g}.")


def check_counts(flags: Mapping[str, Any]) -> None:
    """
    Args:
        flags (mapping): Values by the names of their flags, whatever their types are.

    Raises:
        UsageError: An integer is larger than any run needs.
    """
    for name, value in flags.items():
        if isinstance(value, int) and value > (most := MOST_OF.get(name, MOST)):
            raise UsageError(f"--{name} is {_short(value)}; give an integer of at most {most}.")


def check_places(flags: Mapping[str, Any]) -> None:
    """Raises `UsageError` where the name of a file or folder is one that the system cannot even look for."""
    for name in PLACES:
        place = flags.get(name)
        if not place:
            continue
        inside = "private/ledger.jsonl" if name in ("output_dir", "ledger_dir") else ""
        try:
            os.stat(os.path.join(os.path.expanduser(place), inside))
        except (FileNotFoundError, NotADirectoryError):  # whoever opens it says so
            continue
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it holds a null character"
            raise UsageError(
                f"--{name} {ascii(place)[1:201].rstrip(chr(39))} cannot be opened ({reason}); give another."
            ) from None


def check_images(flag: str, value: int, classes: int, values_of_an_image: int, free: int | None) -> None:
    """That a release can hold the images that are made, and this machine.

    Args:
        flag (`str`), value (`int`): That says how many.
        classes (`int`): Of each of which there are as many.
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


def _short(value: int) -> str:
    return str(value) if value < 10**18 else "far too large"
