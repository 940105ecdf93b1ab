# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Pictures of the bounds against epsilon, as SVG without a library."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

import numpy as np
from scipy.special import ndtr, ndtri

from ..audit.bounds import gaussian_epsilon


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 230, 62, 14, 14, 44
MUS = np.geomspace(0.02, 12, 45)


@dataclass(frozen=True)
class BoundChart:
    """A picture with its words.

    Args:
        title, caption (`str`): Words above and below.
        svg (`str`): Picture, with its own title for readers who do not see it.
    """

    title: str
    caption: str
    svg: str


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
    if probability <= 0:
        return "0 %"
    if probability < 1e-4:
        return f"1 in {math.floor(1 / probability):,}"
    unit = 10.0 ** (math.floor(math.log10(probability * 100)) - 2)
    return f"{min(100.0, math.ceil(round(probability * 100 / unit, 6)) * unit):.3g} %"


def draw(
    title: str, bound: Callable[[float], float], floor: float, reference: list[tuple[float, float]],
    here: tuple[float, float],
) -> BoundChart:  # fmt: skip
    """Draws a bound against epsilon, both on logarithmic scales.

    Args:
        title (`str`): Words above.
        bound (`Callable`): Bound of one Gaussian answer by its mu.
        floor (`float`): Smallest probability of the scale, above 0.
        reference (`list[tuple]`): See `one_gaussian`.
        here (`tuple[float, float]`): Epsilon and bound of this release.
    """
    epsilon, value = here
    low, high = min(0.1, epsilon / 2), max(30.0, 2 * epsilon)
    points = [(at, max(floor, bound(mu))) for at, mu in reference if low <= at <= high]

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(at / low) / math.log(high / low)

    def y(probability: float) -> float:
        part = math.log(min(1.0, max(floor, probability)) / floor) / math.log(1 / floor)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part

    columns = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    powers = range(math.ceil(math.log10(floor)), 1)
    rows = [10.0**power for power in powers if len(powers) < 6 or power % 2 == 0]
    lines = [
        *(f'<path class="grid" d="M{x(at):.1f} {TOP}V{HEIGHT - BOTTOM}"/>' for at in columns),
        *(f'<path class="grid" d="M{LEFT} {y(at):.1f}H{WIDTH - RIGHT}"/>' for at in rows),
        *(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{at:g}</text>' for at in columns),
        *(f'<text x="{LEFT - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{_tick(at)}</text>' for at in rows),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">epsilon</text>',
        '<path class="curve" d="M' + "L".join(f"{x(at):.1f} {y(found):.1f}" for at, found in points) + '"/>',
        f'<path class="mark" d="M{x(epsilon):.1f} {y(value):.1f}V{HEIGHT - BOTTOM}"/>',
        f'<circle class="here" cx="{x(epsilon):.1f}" cy="{y(value):.1f}" r="5"/>',
    ]
    said = f"This release: epsilon {epsilon:.3g}, {percent(value)}."
    words = f"{title} against epsilon. {said}"
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"<title>{escape(words)}</title>{''.join(lines)}</svg>"
    )
    return BoundChart(title, said, svg)


def _tick(probability: float) -> str:
    return f"{100 * probability:.4f}".rstrip("0").rstrip(".") + " %"
