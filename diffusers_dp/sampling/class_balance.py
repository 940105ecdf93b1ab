# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The classes of drawn images: in equal shares, in public shares, or in the noisy shares of a receipt. Nothing here
reads a private image."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..files.untrusted_values import bounded_number


if TYPE_CHECKING:
    import numpy as np

UNIFORM, RELEASED = "uniform", "released"
CLASS_SHARE = "share of the images"  # metric in a receipt's evaluation


def released_balance(receipt: dict[str, Any], class_names: Sequence[str]) -> str:
    """Reads the noisy class shares of the training images, which a run with `--evaluation_reserve` has paid for.

    Args:
        receipt (`dict`): Verified receipt of the release.
        class_names (sequence of `str`): Class names of the model, in order.

    Returns:
        `str`: Share of each class in per cent, comma-separated, in the format of `parse_balance`.

    Raises:
        UsageError: The receipt has no shares, or their sum is not above 0 because of the noise.
    """
    found = [each for each in receipt.get("evaluation", ()) if each["metric"] == CLASS_SHARE]
    shares = {each["protocol"].get("class"): each["value"] for each in found}
    if len(shares) != len(found) or shares.keys() != set(class_names) or not sum(shares.values()) > 0:
        raise UsageError(
            f"--class_balance {RELEASED} needs the noisy shares of a run with --evaluation_reserve, which this "
            f"release does not have; give {UNIFORM}, or a share for each class."
        )
    return ",".join(f"{shares[name]:.4g}" for name in class_names)


def parse_balance(text: str, num_classes: int | None) -> tuple[float, ...] | None:
    """Reads `--class_balance`.

    Args:
        text (`str`): `uniform`, or one share for each class, comma-separated, in any unit: `1,1,2` gives the third
            class half of the images.
        num_classes (`int`, *optional*): Number of classes of the model; `None` without classes.

    Returns:
        `tuple[float, ...]` or `None`: Shares that sum to 1; `None` for equal shares.

    Raises:
        UsageError: The text is not a list of shares, or has not one share for each class.
    """
    if text == UNIFORM:
        return None
    if num_classes is None:
        raise UsageError("--class_balance needs a model with classes; leave it out.")
    try:
        shares = [bounded_number(float(part), 0) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != num_classes or not 0 < sum(shares) < math.inf:
        raise UsageError(
            f"--class_balance '{text}' is not a share for each of {num_classes} classes; give {UNIFORM}, or numbers "
            "like 0.2,0.8."
        )
    return tuple(share / sum(shares) for share in shares)


@lru_cache(maxsize=2)
def balanced_labels(shares: tuple[float, ...], num_images: int) -> "np.ndarray":
    """Assigns class ids, int64 of shape `[num_images]`: image i gets the class that lags most behind its share of the
    first i + 1 images.

    In every prefix the count of each class differs from its share by about one image at most. Prefixes do not depend
    on `num_images`.
    """
    import numpy as np

    labels = np.empty(num_images, dtype=np.int64)
    lag, step = np.zeros(len(shares)), np.asarray(shares)
    for i in range(num_images):
        lag += step
        labels[i] = lag.argmax()
        lag[labels[i]] -= 1
    return labels
