# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The distribution of diffusion times of training rows: a mixture of uniform distributions. No torch."""

import math
import re

import numpy as np


#: T, the unit of diffusion time, whatever the number of steps of a scheduler is.
TIMESTEPS = 1000
_INTERVAL = re.compile(r"\s*([\d.]+)\s*-\s*([\d.]+)\s*:\s*([\d.eE+-]+)\s*")
_TOLERANCE = 1e-6  # of the sum of the weights


class TimestepMixture:
    """`t ~ sum_i w_i U[l_i, u_i)` with `l_1 = 0`, `u_i = l_{i+1}`, and `T = 1000` at the end (Ghalebikesabi et al.
    2023, Section 4).

    Times are shares of T: `ddpm` uses them as shares of the scheduler's steps, and `edm` as quantiles of its noise
    levels. A single interval therefore gives EDM's own distribution.

    Args:
        bounds (`list[float]`): 0, the inner bounds of the intervals, and 1000.
        weights (`list[float]`): Probability of each interval.

    Example:
        ```python
        >>> TimestepMixture.parse("0-200:0.05,200-800:0.9,800-1000:0.05").weights
        [0.05, 0.9, 0.05]
        ```
    """

    def __init__(self, bounds: list[float], weights: list[float]):
        self.bounds = bounds
        self.weights = weights

    @classmethod
    def parse(cls, text: str) -> "TimestepMixture":
        """
        Reads a text such as `0-200:0.05,200-800:0.9,800-1000:0.05`: comma-separated intervals, each with its weight.

        Raises:
            ValueError: An interval cannot be read or is empty, the intervals do not cover 0 to 1000 in order, or the
                weights are not positive numbers whose sum is 1.
        """
        parts = [_INTERVAL.fullmatch(part) for part in text.split(",")]
        found = [[float(number) for number in part.groups()] for part in parts if part is not None]
        bounds, weights = [0.0, *(end for _, end, _ in found)], [weight for _, _, weight in found]
        in_order = len(found) == len(parts) and [start for start, _, _ in found] == bounds[:-1]
        if not in_order or bounds[-1] != TIMESTEPS or sorted(set(bounds)) != bounds:
            raise ValueError(f"'{text}' does not cover 0 to {TIMESTEPS}.")
        if not min(weights) > 0 or not math.isclose(sum(weights), 1, abs_tol=_TOLERANCE):
            raise ValueError(f"'{text}' has weights whose sum is {sum(weights):g}.")
        return cls(bounds, weights)

    def times(self, uniform: np.ndarray) -> np.ndarray:
        """Maps uniform draws from [0, 1) to diffusion times in [0, 1), by the inverse of the distribution function."""
        reached = np.cumsum([0.0, *self.weights])
        times = np.interp(uniform * reached[-1], reached, np.array(self.bounds) / TIMESTEPS)
        return np.minimum(times, np.nextafter(1, 0))  # rounding may reach 1
