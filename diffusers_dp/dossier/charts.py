# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Places of the bounds against epsilon, which the template draws as SVG."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from ..audit.bounds import gaussian_epsilon
from ..release.plain_words import short_number


WIDTH, HEIGHT = 264, 172  # of the grid, in pixels
MUS = np.geomspace(0.02, 12, 45)


@dataclass(frozen=True)
class BoundChart:
    """A picture with its words; the template draws it.

    Args:
        title, caption (`str`): Words above and below.
        columns, rows (`list[tuple[float, str]]`): Places of the grid's lines from the left and from the top, in
            pixels, with their labels.
        curve (`list[tuple[float, float]]`): Places of the bound.
        here (`tuple[float, float]`): Place of this release.
    """

    title: str
    caption: str
    columns: list[tuple[float, str]]
    rows: list[tuple[float, str]]
    curve: list[tuple[float, float]]
    here: tuple[float, float]


def one_gaussian(delta: float) -> list[tuple[float, float]]:
    """Returns epsilon at `delta` of one Gaussian answer, and its `mu`, from much noise to little."""
    return [(epsilon, float(mu)) for mu in MUS if (epsilon := gaussian_epsilon(float(mu), delta)) > 0]


def success(alpha: float) -> Callable[[float], float]:
    """Returns the best success of an attack on one Gaussian answer, by its mu: `Phi(Phi^-1(alpha) + mu)` (Dong, Roth
    and Su 2022, Equation 6)."""
    return lambda mu: float(ndtr(ndtri(alpha) + mu))


def advantage(mu: float) -> float:
    """Returns the best membership advantage against one Gaussian answer: `2 Phi(mu / 2) - 1`."""
    return float(2 * ndtr(mu / 2) - 1)


def percent(probability: float) -> str:
    """Formats a probability, rounded up to three digits; a small one as "1 in N"."""
    if 0 < probability < 1e-4:
        return f"1 in {math.floor(1 / probability):,}"
    return f"{short_number(100 * probability)} %"


def bound_chart(
    title: str, bound: Callable[[float], float], floor: float, reference: list[tuple[float, float]],
    here: tuple[float, float],
) -> BoundChart:  # fmt: skip
    """Places a bound against epsilon, both on logarithmic scales.

    Args:
        title (`str`): Words above.
        bound (`Callable`): Bound of one Gaussian answer by its mu.
        floor (`float`): Smallest probability of the scale, above 0.
        reference (`list[tuple]`): See `one_gaussian`.
        here (`tuple[float, float]`): Epsilon and bound of this release.
    """
    low, high = min(0.1, here[0] / 2), max(30.0, 2 * here[0])

    def x(epsilon: float) -> float:
        return WIDTH * math.log(epsilon / low) / math.log(high / low)

    def y(probability: float) -> float:
        return HEIGHT * math.log(min(1.0, max(floor, probability))) / math.log(floor)

    columns = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    powers = range(math.ceil(math.log10(floor)), 1)
    rows = [10.0**power for power in powers if len(powers) < 6 or power % 2 == 0]
    return BoundChart(
        title, f"This release: epsilon {here[0]:.3g}, {percent(here[1])}.",
        columns=[(x(at), f"{at:g}") for at in columns],
        rows=[(y(at), f"{100 * at:.4f}".rstrip("0").rstrip(".") + " %") for at in rows],
        curve=[(x(at), y(bound(mu))) for at, mu in reference if low <= at <= high],
        here=(x(here[0]), y(here[1])),
    )  # fmt: skip
