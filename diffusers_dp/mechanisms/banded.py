# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Groups of units take turns, and the noise is correlated over the steps: banded matrix factorisation
(Choquette-Choo et al. 2023, arXiv 2306.08153, Theorem 4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import UsageError
from .band_coefficients import Workload, noise_of_a_step, root_mean_square_error
from .groups import Grouped
from .mechanism import LARGEST_SUM_OF_SQUARES, finite_number
from .poisson import rate_of_coins


#: Grid of `--noise exact`: steps of a coefficient to 1.
COEFFICIENT_STEPS = 2**10


@dataclass(frozen=True, kw_only=True)
class Banded(Grouped):
    """In step t a Poisson sample of group `t mod b` takes part, and the step's noise is a row of C^-1 z.

    A unit is in one group. So it takes part in every b-th step at most, where the columns of C are orthogonal: each of
    its turns is a sampled Gaussian mechanism.

    Args:
        rate (`float`): q of all units; within a group it is b q, at most 1.
        coefficients (`tuple[float, ...]`): c_0 to c_{b-1} of the banded Toeplitz matrix C, b >= 2. A column of C has
            L2 norm at most 1, which a sensitivity of one clip norm takes for granted.

    Raises:
        UsageError: A value lies outside its range.
    """

    kind = "banded_gaussian"
    one_stream = True

    rate: float
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = [finite_number(value, "A coefficient of the bands") for value in self.coefficients]
        if len(numbers) < 2 or not numbers[0] > 0 or not math.fsum(c**2 for c in numbers) <= LARGEST_SUM_OF_SQUARES:
            raise UsageError(
                "Coefficients of bands are two or more, the first above 0, their sum of squares at most 1."
            )
        rate = finite_number(self.rate, "The rate of all units")
        rate = rate_of_coins(rate) if self.exact else rate
        if not 0 < len(numbers) * rate <= 1:
            raise UsageError(f"The rate of all units times {len(numbers)} bands must lie in (0, 1], not {rate}.")
        object.__setattr__(self, "coefficients", tuple(numbers))
        object.__setattr__(self, "rate", rate)

    @property
    def num_groups(self) -> int:
        return len(self.coefficients)

    @property
    def sampling_probability(self) -> float:
        return self.num_groups * self.rate

    @property
    def sample_rate(self) -> float:
        return self.rate

    def turns(self, steps: int) -> int:
        """Of the group that has most: `ceil(steps / b)`, wherever a piece of the stream begins."""
        return -(-steps // self.num_groups)

    @property
    def remembered(self) -> int:
        return self.num_groups - 1

    @property
    def noise_of_a_step(self) -> float:
        return self.noise_multiplier * noise_of_a_step(self.coefficients)

    def error(self, workload: Workload) -> float:
        return self.noise_multiplier * root_mean_square_error(self.coefficients, workload)

    @property
    def sentence(self) -> str:
        return f"in turn from {self.num_groups} groups, noise correlated"

    @property
    def own_facts(self) -> dict[str, Any]:
        """From these anybody can form the noise's covariance and the groups."""
        return {"coefficients": list(self.coefficients), "sample_rate": self.rate, **super().own_facts}

    @property
    def fields(self) -> dict[str, Any]:
        return {**super().fields, "bands": self.num_groups}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        query = row["query"]
        return cls(
            rate=query["sample_rate"], coefficients=tuple(query["coefficients"]), group_key=query["group_key"],
            ids=query["ids"], **cls.read_common(row),
        )  # fmt: skip
