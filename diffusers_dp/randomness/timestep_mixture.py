# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The distribution of diffusion times of training rows: a mixture of uniform distributions. No torch."""

import math
import re

import numpy as np

from ..errors import UsageError


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
        >>> TimestepMixture.parse("0-200:0.05,200-800:0.9,800-1000:0.05", "timestep_mixture").weights
        [0.05, 0.9, 0.05]
        ```
    """

    def __init__(self, bounds: list[float], weights: list[float]):
        self.bounds = bounds
        self.weights = weights

    @classmethod
    def parse(cls, text: str, flag: str) -> "TimestepMixture":
        """
        Reads a flag such as `0-200:0.05,200-800:0.9,800-1000:0.05`: comma-separated intervals, each with its weight.

        Args:
            text (`str`): Value of the flag.
            flag (`str`): Name of the flag, without dashes.

        Raises:
            UsageError: The text cannot be parsed, an interval is empty, the intervals do not cover 0 to 1000 in order,
                or the weights are not positive numbers whose sum is 1.
        """
        parts = [_INTERVAL.fullmatch(part) for part in text.split(",")]
        try:
            ends = [(float(part[1]), float(part[2])) for part in parts if part is not None]
            weights = [float(part[3]) for part in parts if part is not None]
        except ValueError:
            ends, weights = [], []
        if len(ends) < len(parts):
            raise UsageError(
                f"'{text}' cannot be parsed; give intervals with weights, such as "
                "0-200:0.05,200-800:0.9,800-1000:0.05.",
                field=flag,
            )
        bounds = [0.0, *(end for _, end in ends)]
        if [start for start, _ in ends] != bounds[:-1] or bounds[-1] != TIMESTEPS or sorted(set(bounds)) != bounds:
            raise UsageError(
                f"'{text}' does not cover 0 to {TIMESTEPS}; let the first interval start at 0, each other where the "
                f"one before it ends, and the last end at {TIMESTEPS}.",
                field=flag,
            )
        if not min(weights) > 0 or not math.isclose(sum(weights), 1, abs_tol=_TOLERANCE):
            raise UsageError(
                f"'{text}' has weights whose sum is {sum(weights):g}; give positive ones whose sum is 1.", field=flag
            )
        return cls(bounds, weights)

    def times(self, uniform: np.ndarray) -> np.ndarray:
        """Maps uniform draws from [0, 1) to diffusion times in [0, 1), by the inverse of the distribution function."""
        reached = np.cumsum([0.0, *self.weights])
        times = np.interp(uniform * reached[-1], reached, np.array(self.bounds) / TIMESTEPS)
        return np.minimum(times, np.nextafter(1, 0))  # rounding may reach 1
