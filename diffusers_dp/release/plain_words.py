# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts in plain words, for cards, the app and datasets. Nothing here loads torch."""

import math
from dataclasses import dataclass
from typing import Any

from ..accounting.attack_bounds import AttackBounds, attack_bounds_of
from ..verify import LARGE_DELTA, about_delta, delta_in_words
from .receipt import RESERVATION, added_up


@dataclass(frozen=True)
class Strength:
    """The description of an epsilon and its delta.

    Args:
        word (`str`): `strong`, `moderate` or `weak`.
        claim (`str`): Claim about those who see the model; the text "whether your image was used" follows it.
        meaning (`str`): Explanation in one sentence.
    """

    word: str
    claim: str
    meaning: str


STRONG_WORDS = Strength(
    "strong", "learns almost the same whether or not", "The proof alone hides well which of the two it was."
)
MODERATE_WORDS = Strength(
    "moderate", "can tell only within a proven limit whether",
    f"A real limit, and a wide one: towards epsilon 10, or with a delta above {LARGE_DELTA:g}, the proof alone does "
    "not exclude a confident guess.",
)  # fmt: skip
WEAK_WORDS = Strength(
    "weak", "can tell only within a proven limit, too wide to reassure by itself, whether",
    "The proof alone excludes little: ask for an audit, and for a smaller epsilon or delta where people can be "
    "harmed.",
)  # fmt: skip
#: Upper bounds of epsilon for the words; the tiers of Ponomareva et al. 2023, "How to DP-fy ML", Section 5.2.
STRONG, MODERATE = 1.0, 10.0


def strength(epsilon: float, delta: float, number: int) -> Strength:
    """Describes a guarantee. The words describe the proof; actual attacks may achieve far less.

    Epsilon has tiers, and delta can only make the word weaker. Above `LARGE_DELTA` no guarantee is strong. A delta of
    1/number or more permits publishing whole records, so it is weak for any epsilon. Near epsilon 10 `best_guess`
    decides.

    Args:
        epsilon, delta (`float`): Parameters of the guarantee.
        number (`int`): Number N of units, above 0.
    """
    outright = delta >= 1 / number
    if epsilon <= STRONG and delta <= LARGE_DELTA and not outright:
        return STRONG_WORDS
    limited = best_guess(epsilon, delta) <= best_guess(MODERATE, LARGE_DELTA)
    return MODERATE_WORDS if epsilon <= MODERATE and limited and not outright else WEAK_WORDS


def best_guess(epsilon: float, delta: float) -> float:
    """Computes the largest share of correct answers to "was this image used?", if both cases are equally likely.

    A test of two neighbours under (epsilon, delta) has at best equal errors of `(1 - delta) / (1 + e^epsilon)`
    (Kairouz et al. 2015, Equation 4). 0.5 is a blind guess.

    Args:
        epsilon (`float`): Epsilon, at least 0.
        delta (`float`): Delta, in [0, 1].

    Returns:
        `float`: Share in [0.5, 1].
    """
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def strength_of(receipt: dict[str, Any]) -> Strength:
    """Describes the guarantee of a receipt."""
    delta, number, _ = about_delta(receipt)
    return strength(claimed(receipt), delta, number)


def claimed(receipt: dict[str, Any]) -> float:
    """Returns epsilon by the run's accountant."""
    return float(receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"])


def short_number(value: float) -> str:
    """Formats a number with up to three digits, rounded up so that no guarantee looks better than it is."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(round(value / unit, 6)) * unit:.3g}"


def plain_guarantee(receipt: dict[str, Any], what: str = "this model") -> str:
    """Describes the guarantee in one sentence without mathematics, and in a second one if its delta is large.

    Args:
        receipt (`dict`): Receipt of the release.
        what (`str`): Name of the released thing.
    """
    unit = receipt["unit_of_privacy"]
    whose = "your image was" if unit == "image" else f"the images of your {unit} were"
    return (
        f"Whoever sees {what} {strength_of(receipt).claim} {whose} used: epsilon {short_number(claimed(receipt))}, "
        f"delta {short_number(receipt['delta'])}, per {unit}. {delta_in_words(*about_delta(receipt))}"
    ).rstrip()


def found_in_words(
    receipt: dict[str, Any], bounds: AttackBounds, together: AttackBounds | None, what: str = "this release"
) -> str:
    """Describes the best attack by two numbers: of 1,000 unused units one is accused, and of 1,000 used ones at most
    this many are found.

    Args:
        receipt (`dict`): Receipt of the release.
        bounds (`AttackBounds`): Its bounds, see `attack_bounds_of`.
        together (`AttackBounds`, *optional*): Bounds with the earlier releases of its data set, if there are any.
        what (`str`): Name of the released thing.
    """
    unit = receipt["unit_of_privacy"]
    said = (
        f"Suppose that an attack on {what} wrongly accuses 1 of 1,000 {unit}s that were not used. Then it finds at "
        f"most {of_thousand(bounds.true_positive_rates[0.001])} of 1,000 {unit}s that were used. A blind guess finds "
        "1."
    )
    if together is not None:
        all_found = of_thousand(together.true_positive_rates[0.001])
        said += f" With the earlier releases from the same data together, it finds at most {all_found}."
    return f"{said} Outputs that the guarantee does not cover may tell more." if receipt.get("leaky_outputs") else said


def of_thousand(rate: float) -> str:
    """Formats a rate as a number of 1,000, rounded up: whole from 10 on, with one decimal below."""
    number = round(1000 * rate, 6)
    return f"{min(1000, math.ceil(number)):,}" if number > 9.9 else f"{math.ceil(number * 10) / 10:g}"


def attack_in_words(receipt: dict[str, Any], what: str = "this model") -> str:
    """Computes the bounds of a release and describes them, see `found_in_words`; nothing where they take too long."""
    bounds = _bounds_or_none(receipt)
    if bounds is None:
        return ""
    together = _bounds_or_none(receipt, all_releases=True) if has_earlier(receipt) else None
    return found_in_words(receipt, bounds, together, what)


def has_earlier(receipt: dict[str, Any]) -> bool:
    """Whether a receipt counts earlier releases of its data set."""
    return bool(receipt.get("dataset") and receipt.get("prior_releases"))


def _bounds_or_none(receipt: dict[str, Any], *, all_releases: bool = False) -> AttackBounds | None:
    """Nothing where the bounds take too long: words are no reason to lose a finished release."""
    try:
        return attack_bounds_of(receipt, all_releases=all_releases)
    except (ArithmeticError, ValueError, MemoryError):  # as `verify` catches them
        return None


def queries(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges events that differ only in their reservation, with the sum of their `steps`."""
    return [
        {**{key: value for key, value in event.items() if key not in RESERVATION}, "steps": event["steps_reserved"]}
        for event in added_up(events)
    ]
