# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One question to the sensitive images, as the ledger writes it down. Nothing here loads torch."""

import math
import numbers
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError


NON_PRIVATE = "non_private"  # dp_accounting's word


@dataclass(frozen=True)
class LedgerRow:
    """One question, before it is asked.

    Args:
        name (`str`): the stage that asks, for example `"central_images"`.
        mechanism (`str`): `"gaussian"` (every image is looked at), `"poisson_gaussian"` (each with a probability) or
            `"truncated_poisson_gaussian"` (and of those never more than `truncated_batch_size`). Or `"non_private"`:
            without noise, which no ledger takes but `unprotected_ledger.UnprotectedLedger`.
        noise_multiplier (`float`): standard deviation of the noise divided by the sensitivity; above 0 and finite, and
            0 exactly for `"non_private"`.
        sampling_probability (`float`): Poisson probability, in (0, 1]; 1 exactly for `"gaussian"`.
        steps (`int`): how many times it is asked.
        query (`dict`): public facts only, for example sensitivity or clip norm, normaliser, parameters.
        partition (`str`, *optional*): `"label"` when asked once per class in parallel (an image has one class).
        truncated_batch_size (`int`, *optional*): the most images of one Poisson sample.

    Raises:
        UsageError: if a value lies outside its range.
    """

    name: str
    mechanism: str
    noise_multiplier: float
    sampling_probability: float = 1.0
    steps: int = 1
    query: dict = field(default_factory=dict)
    partition: str | None = None
    truncated_batch_size: int | None = None

    def __post_init__(self) -> None:
        sigma = finite_number(self.noise_multiplier, f"The noise multiplier of {self.name!r}")
        q = finite_number(self.sampling_probability, f"The sampling probability of {self.name!r}")
        if not sigma > 0 and not (sigma == 0 and self.mechanism == NON_PRIVATE):
            raise UsageError(f"The noise multiplier of {self.name!r} must be above 0, not {sigma}.")
        if not 0 < q <= 1:
            raise UsageError(f"The sampling probability of {self.name!r} must lie in (0, 1], not {q}.")
        cap = self.truncated_batch_size
        if self.mechanism != mechanism_of(q, cap, sigma):
            raise UsageError(
                f"The mechanism of {self.name!r} is {self.mechanism!r} with sampling probability {q}: use 'gaussian' "
                "for a sampling probability of 1, 'poisson_gaussian' below it, and 'truncated_poisson_gaussian' with "
                "a truncated batch size."
            )
        if cap is not None and (not isinstance(cap, numbers.Integral) or cap < 1 or q == 1):
            raise UsageError(
                f"The truncated batch size of {self.name!r} must be a whole number above 0, with a sampling "
                f"probability below 1, not {cap!r} with {q}."
            )
        if not isinstance(self.steps, numbers.Integral) or self.steps < 1:
            raise UsageError(f"The steps of {self.name!r} must be a whole number above 0, not {self.steps!r}.")
        for key, value in (("noise_multiplier", sigma), ("sampling_probability", q), ("steps", int(self.steps))):
            object.__setattr__(self, key, value)  # Python's own numbers, whatever came (numpy's are not JSON)
        if cap is not None:
            object.__setattr__(self, "truncated_batch_size", int(cap))


def gradient_row(
    *,
    max_grad_norm: float,
    noise_multiplier: float,
    sample_rate: float,
    normaliser: float,
    noise_multiplicity: int,
    truncated_batch_size: int | None = None,
    max_images_per_unit: int | None = None,
) -> LedgerRow:
    """The ledger's row for one step of DP-SGD with these parameters."""
    return LedgerRow(
        name="dp_sgd",
        mechanism=mechanism_of(sample_rate, truncated_batch_size, noise_multiplier),
        noise_multiplier=noise_multiplier,
        sampling_probability=sample_rate,
        query={
            "sensitivity": max_grad_norm,
            "clip_norm": max_grad_norm,
            "normaliser": normaliser,
            "noise_multiplicity": noise_multiplicity,
            **({} if max_images_per_unit is None else {"max_images_per_unit": max_images_per_unit}),
        },
        truncated_batch_size=truncated_batch_size,
    )


def mechanism_of(
    sampling_probability: float, truncated_batch_size: int | None = None, noise_multiplier: float = 1.0
) -> str:
    """Name of the Gaussian mechanism on a Poisson sample, or of what has no noise."""
    if noise_multiplier == 0:
        return NON_PRIVATE
    if truncated_batch_size is not None:
        return "truncated_poisson_gaussian"
    return "gaussian" if sampling_probability == 1 else "poisson_gaussian"


def finite_number(value: Any, what: str) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise UsageError(f"{what} must be a finite number, not {value!r}.")
    return float(value)
