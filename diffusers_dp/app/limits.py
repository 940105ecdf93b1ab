# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Limits on visitors' requests, and on what the page keeps."""

from collections.abc import Iterable
from typing import Any

from ..errors import UsageError


PIPELINES_KEPT = 2  # models in memory
LONGEST_NAME = 300  # letters of a release's name
MODELS_FETCHED = 20  # releases fetched by typed names until a restart, because each uses disk space
OPENED_AT_ONCE = 8  # models that visitors have open, fetched and verified
QUEUE_LENGTH = 128
SESSIONS_KEPT = 128
SECONDS_KEPT = 1800  # time during which a visitor can save drawn images
LARGEST_SIDE = 512  # pixels of an image, from the model's config
MOST_CLASSES = 10_000  # number of classes, from the model's config


def check_typed(numbers: dict[str, tuple[Any, float, float]]) -> None:
    """Checks numbers from the page, because a visitor can edit the page.

    Args:
        numbers (`dict`): By what they count, as a sentence begins: the value, and its bounds. Integer bounds ask for a
            whole number.

    Raises:
        UsageError: A value is not within its bounds; the message names it and them.
    """
    for what, (value, least, most) in numbers.items():
        kinds = (int,) if isinstance(most, int) else (int, float)
        if type(value) not in kinds or not least <= value <= most:
            a_number = "a whole number" if kinds == (int,) else "a number"
            bound = f"{most:,}".removesuffix(".0")
            raise UsageError(f"{what} has to be {a_number} from {least:g} to {bound}.")


def check_choice(what: str, value: Any, choices: Iterable[str]) -> None:
    """Raises `UsageError` if a value from the page is not one of its choices."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{what} has to be one of {', '.join(choices)}.")
