# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `diffusers-dp plan` says of a visitor's numbers. Reads no image, keeps nothing, and loads no torch."""

from typing import Any

from ..methods.advice import read_evidence
from ..methods.flag import MOST, validate
from ..runs.recommendation import DeclaredFacts, recommendation
from .limits import LARGEST_SIDE, check_choice, check_typed


COLOURS = {"grey": 1, "colour": 3}  # channels
MOST_CLASSES = 1_000  # a command that names more is hard to read


def planned(num_images: Any, side: Any, colour: Any, num_classes: Any, epsilon: Any, minutes: Any) -> str:
    """Returns the ranking of the methods for these facts, with the first one's plan and command.

    Args:
        num_images, side, num_classes (`int`): Number of images, their side in pixels, and number of classes.
        colour (`str`): One of `COLOURS`.
        epsilon (`float`): Total epsilon.
        minutes (`float`): Time on one core; 0: any.

    Raises:
        UsageError: A number is out of range, the colour is unknown, or the facts cannot be.
    """
    check_typed({
        "The number of images": (num_images, 1, MOST), "The side": (side, 1, LARGEST_SIDE),
        "The number of classes": (num_classes, 1, MOST_CLASSES), "Epsilon": (epsilon, 0.01, 100.0),
        "The number of minutes": (minutes, 0, 1e6),
    })  # fmt: skip
    check_choice("The colour", colour, COLOURS)
    facts = DeclaredFacts(
        num_train_images=num_images, resolution=side, num_channels=COLOURS[colour],
        num_classes=num_classes if num_classes > 1 else None, target_epsilon=float(epsilon), minutes=minutes or None,
    )  # fmt: skip
    validate(facts)
    return recommendation(facts, read_evidence())
