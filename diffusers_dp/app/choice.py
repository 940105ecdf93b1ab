# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which method suits declared facts: what `diffusers-dp recommend` says, and the leaderboard, for a visitor. Reads no
image, keeps nothing, and loads no torch."""

from functools import cache
from typing import Any

from ..methods.advice import read_evidence
from ..methods.flag import MOST, validate
from ..methods.leaderboard import TITLES, leaderboard_picture, leaderboard_table, read_leaderboard
from ..runs.recommendation import DeclaredFacts, recommendation
from .budget import check_typed
from .limits import LARGEST_SIDE


MOST_CLASSES = 1_000  # a command that names more is hard to read


def recommended(num_images: Any, side: Any, colour: Any, num_classes: Any, epsilon: Any, minutes: Any) -> str:
    """
    Args:
        num_images, side, num_classes (`int`): Number of images, their side in pixels, and number of classes.
        colour (`str`): `"colour"` or `"grey"`.
        epsilon (`float`): Total epsilon.
        minutes (`float`): Time on one core; 0: any.

    Raises:
        UsageError: A number is out of range, or the facts cannot be.
    """
    values = {
        "number of images": num_images, "side": side, "number of classes": num_classes, "epsilon": epsilon,
        "number of minutes": minutes,
    }  # fmt: skip
    bounds = {
        "number of images": (1, MOST), "side": (1, LARGEST_SIDE), "number of classes": (1, MOST_CLASSES),
        "epsilon": (0.01, 100), "number of minutes": (0, 1_000_000),
    }  # fmt: skip
    check_typed(values, bounds)
    facts = DeclaredFacts(
        num_train_images=int(num_images), resolution=int(side), num_channels=3 if colour == "colour" else 1,
        num_classes=int(num_classes), target_epsilon=float(epsilon), minutes=minutes or None,
    )  # fmt: skip
    validate(facts)
    return recommendation(facts, read_evidence())[0]


def measured_tables() -> list[tuple[str, str]]:
    """Titles and tables of the leaderboard, as Markdown, the data sets with a title first."""
    places = read_leaderboard()
    names = dict.fromkeys([*TITLES, *(place.data for place in places)])
    return [(TITLES.get(name, name), leaderboard_table(places, name)) for name in names]


@cache
def measured_picture() -> bytes | None:
    """The leaderboard as a PNG; `None` without rows."""
    return leaderboard_picture(read_leaderboard())
