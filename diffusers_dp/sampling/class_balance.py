# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which class each drawn image has: all in equal shares, in shares that are public, or in the noisy ones that a
receipt carries. Nothing here looks at a private image."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError


if TYPE_CHECKING:
    import numpy as np

UNIFORM, RELEASED = "uniform", "released"
CLASS_SHARE = "share of the images"  # the metric of a receipt's evaluation


def released_balance(receipt: dict[str, Any], class_names: Sequence[str]) -> str:
    """The noisy shares of the classes among the training images, which a run with `--evaluation_reserve` has paid for.

    Args:
        receipt (`dict`): Of the release, verified.
        class_names (sequence of `str`): Of the model, in its order.

    Returns:
        `str`: A share in per cent for each class, comma-separated, as `parse_balance` reads it.

    Raises:
        UsageError: The receipt has none, or the noise hides them all.
    """
    found = [each for each in receipt.get("evaluation", ()) if each["metric"] == CLASS_SHARE]
    shares = {each["protocol"].get("class"): each["value"] for each in found}
    if len(shares) != len(found) or shares.keys() != set(class_names) or not sum(shares.values()) > 0:
        raise UsageError(
            f"--class_balance {RELEASED} needs the noisy shares of a run with --evaluation_reserve, and this release "
            f"has none; give {UNIFORM}, or a share for each class."
        )
    return ",".join(f"{shares[name]:.4g}" for name in class_names)


def parse_balance(text: str, num_classes: int | None) -> tuple[float, ...] | None:
    """Reads `--class_balance`.

    Args:
        text (`str`): `uniform`, or one share for each class, comma-separated, in any unit: `1,1,2` is a half for the
            third.
        num_classes (`int`, *optional*): Of the model; `None` for one without classes.

    Returns:
        `tuple[float, ...]` or `None`: Shares that sum to 1; `None` for equal ones.

    Raises:
        UsageError: They are no shares, or not one for each class.
    """
    if text == UNIFORM:
        return None
    if num_classes is None:
        raise UsageError("--class_balance needs a model with classes; leave it out.")
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if (
        not shares
        or not all(math.isfinite(share) and share >= 0 for share in shares)
        or not 0 < sum(shares) < math.inf
    ):
        raise UsageError(f"--class_balance '{text}' is no list of shares; give {UNIFORM}, or numbers like 0.2,0.8.")
    if len(shares) != num_classes:
        raise UsageError(
            f"--class_balance has {len(shares)} shares, and this model has {num_classes} classes; give one for each."
        )
    return tuple(share / sum(shares) for share in shares)


@lru_cache(maxsize=2)
def balanced_labels(shares: tuple[float, ...], num_images: int) -> "np.ndarray":
    """Class ids of shape `[num_images]`, int64: image i gets the class that lags most behind its share of the first i
    + 1 images.

    Every beginning has the shares but for less than one image a class and class more, and does not depend on
    `num_images`.
    """
    import numpy as np

    labels = np.empty(num_images, dtype=np.int64)
    lag, step = np.zeros(len(shares)), np.asarray(shares)
    for i in range(num_images):
        lag += step
        labels[i] = lag.argmax()
        lag[labels[i]] -= 1
    return labels
