# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A Poisson sample takes part: the sampled Gaussian mechanism (Abadi et al. 2016; Mironov, Talwar and Zhang 2019)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import UsageError
from .mechanism import Mechanism, finite_number


@dataclass(frozen=True, kw_only=True)
class Poisson(Mechanism):
    """Each unit takes part by itself, in each step anew.

    Args:
        rate (`float`): q, in (0, 1); with `exact` rounded up to what coins can draw.

    Raises:
        UsageError: A value lies outside its range.
    """

    kind = "poisson_gaussian"

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = finite_number(self.rate, "The sampling probability")
        if not 0 < rate < 1:
            raise UsageError(f"The sampling probability of a Poisson sample must lie in (0, 1), not {rate}.")
        object.__setattr__(self, "rate", rate_of_coins(rate) if self.exact else rate)

    @property
    def sampling_probability(self) -> float:
        return self.rate

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        return cls(rate=row["sampling_probability"], **cls.read_common(row))


def rate_of_coins(sample_rate: float) -> float:
    """The probability with which a uniform number of 53 bits lies below a rate: that rate, rounded up."""
    return math.ceil(sample_rate * 2**53) / 2**53
