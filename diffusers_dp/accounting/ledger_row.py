# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Ledger rows: one question to the sensitive images each. Nothing here loads torch."""

import math
import numbers
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError


NON_PRIVATE = "non_private"  # dp_accounting's name
BANDED = "banded_gaussian"
DP_SGD, TEACHERS = "dp_sgd", "teachers"  # names of rows that have many steps
IDS = ("path", "row", "column")
LARGEST_SUM_OF_SQUARES = 1 + 1e-9  # of coefficients scaled to norm 1; any excess is more than rounding
#: Grid of `--noise exact`: steps to a clip norm, and steps of the coefficients of bands to 1. Of 64 vectors of
#: that norm every sum of some is below 2^24, so that float32 adds them exactly.
STEPS, COEFFICIENT_STEPS = 2**18, 2**10
NO_EXACT_LATENTS = "--noise exact has no proof for latents, because their last bits were not tried: leave it out."
SMALLEST = 1e-30  # of a clip norm or divisor; squares of smaller ones vanish in float32


@dataclass(frozen=True)
class Bands:
    """Noise that is correlated over `count` steps, and groups of units that take turns. All of it is public.

    Args:
        coefficients (`tuple[float, ...]`): c_0 to c_{b-1} of the banded Toeplitz matrix C, b >= 2. The step's noise is
            a row of C^-1 z. A column of C has L2 norm at most 1, which a sensitivity of one clip norm takes for
            granted.
        group_key (`str`): Key of the hash that assigns a unit to a group by its id, 16 bytes in
            hexadecimal; see `randomness.keyed_hash.group_of`.
        ids (`str`, defaults to `"row"`): What an id is: the `"path"` of an image relative to the data folder, the
            number of its `"row"`, or its value in a `"column"`.

    Raises:
        UsageError: A value lies outside its range.
    """

    coefficients: tuple[float, ...]
    group_key: str
    ids: str = "row"

    def __post_init__(self) -> None:
        c, key = self.coefficients, self.group_key
        numbers = [finite_number(value, "A coefficient of the bands") for value in c]
        if len(c) < 2 or not numbers[0] > 0 or not math.fsum(value**2 for value in numbers) <= LARGEST_SUM_OF_SQUARES:
            raise UsageError(
                "Coefficients of bands are two or more, the first above 0, their sum of squares at most 1."
            )
        if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key) and self.ids in IDS):
            raise UsageError(
                "Groups of units need a key of 16 bytes in hexadecimal and the kind of ids. "
                f"Found: key {key!r}, ids {self.ids!r}."
            )

    @property
    def count(self) -> int:
        """b: how many bands there are, and groups."""
        return len(self.coefficients)

    @classmethod
    def of(cls, query: dict) -> "Bands | None":
        """Those that the public facts of a row state; `None` where they state none. Raises `UsageError` or `TypeError`
        where they are wrong."""
        if "coefficients" not in query:
            return None
        return cls(tuple(query["coefficients"]), query.get("group_key", ""), query.get("ids", ""))

    @property
    def facts(self) -> dict[str, Any]:
        """What the public facts of a row state. From these anybody can form the noise's covariance and the groups."""
        return {"coefficients": list(self.coefficients), "group_key": self.group_key, "ids": self.ids}


@dataclass(frozen=True)
class LedgerRow:
    """One question, before it is asked.

    Args:
        name (`str`): Stage that asks, for example `"central_images"`.
        mechanism (`str`): `"gaussian"` (all images), `"poisson_gaussian"` (a Poisson sample) or `"banded_gaussian"` (a
            sample of one of `bands` groups, which take turns). `"non_private"` has no noise, and only
            `unprotected_ledger.UnprotectedLedger` accepts it.
        noise_multiplier (`float`): Standard deviation of the noise divided by the sensitivity; finite and above 0, or
            exactly 0 for `"non_private"`.
        sampling_probability (`float`): Poisson probability, in (0, 1]; exactly 1 for `"gaussian"`. With bands, the
            probability within a group: b times the rate of all units.
        steps (`int`): Number of times that the question is asked.
        query (`dict`): Public facts only, for example sensitivity or clip norm, normaliser, parameters.
        partition (`str`, *optional*): `"label"` if asked once per class in parallel (an image has one class).
        bands (`int`, *optional*): Number b of groups that take turns, at least 2. `query` states their `Bands`.

    Raises:
        UsageError: A value is outside its range.
    """

    name: str
    mechanism: str
    noise_multiplier: float
    sampling_probability: float = 1.0
    steps: int = 1
    query: dict = field(default_factory=dict)
    partition: str | None = None
    bands: int | None = None

    def __post_init__(self) -> None:
        sigma = finite_number(self.noise_multiplier, f"The noise multiplier of {self.name!r}")
        q = finite_number(self.sampling_probability, f"The sampling probability of {self.name!r}")
        if not sigma > 0 and not (sigma == 0 and self.mechanism == NON_PRIVATE):
            raise UsageError(f"The noise multiplier of {self.name!r} must be above 0, not {sigma}.")
        for fact in ("clip_norm", "sensitivity", "normaliser"):
            if fact in self.query:
                value = finite_number(self.query[fact], f"The {fact.replace('_', ' ')} of {self.name!r}")
                if value < SMALLEST:
                    raise UsageError(
                        f"The {fact.replace('_', ' ')} of {self.name!r} must be at least {SMALLEST:g}, not {value:g}."
                    )
        if not 0 < q <= 1:
            raise UsageError(f"The sampling probability of {self.name!r} must lie in (0, 1], not {q}.")
        if self.mechanism != mechanism_of(q, sigma, self.bands):
            raise UsageError(
                f"The mechanism of {self.name!r} is {self.mechanism!r} with sampling probability {q}: use 'gaussian' "
                "for a sampling probability of 1, 'poisson_gaussian' below it, and 'banded_gaussian' with bands."
            )
        if self.bands is not None:
            self._check_bands(q, self.bands)
        if not isinstance(self.steps, numbers.Integral) or self.steps < 1:
            raise UsageError(f"The steps of {self.name!r} must be a whole number above 0, not {self.steps!r}.")
        for key, value in (("noise_multiplier", sigma), ("sampling_probability", q), ("steps", int(self.steps))):
            object.__setattr__(self, key, value)  # converted to Python's numbers because numpy's are not JSON

    def _check_bands(self, q: float, bands: int) -> None:
        """Checks that the public facts state the same bands and the rate of all units."""
        stated, rate = Bands.of(self.query), finite_number(self.query.get("sample_rate"), "The rate of all units")
        same = stated is not None and stated.count == bands and isinstance(bands, int) and bands * rate == q
        if not same or self.mechanism != BANDED:
            raise UsageError(
                f"{self.name!r} has {bands} bands, a sampling probability of {q} and a rate of {rate}: give as many "
                "coefficients as bands, and a probability of bands times the rate."
            )


def gradient_row(
    *,
    max_grad_norm: float,
    noise_multiplier: float,
    sample_rate: float,
    normaliser: float,
    noise_multiplicity: int,
    facts: dict[str, int] | None = None,
    bands: Bands | None = None,
) -> LedgerRow:
    """Builds the ledger row of one step of DP-SGD; `sample_rate` is the rate q of all units, `facts` what the door
    says of all its rows.

    Raises:
        UsageError: A value is outside its range; with bands, q times their number is above 1.
    """
    number = None if bands is None else bands.count
    probability = sample_rate if bands is None else bands.count * sample_rate
    return LedgerRow(
        name=DP_SGD,
        mechanism=mechanism_of(probability, noise_multiplier, number),
        noise_multiplier=noise_multiplier,
        sampling_probability=probability,
        query={
            "sensitivity": max_grad_norm,
            "clip_norm": max_grad_norm,
            "normaliser": normaliser,
            "noise_multiplicity": noise_multiplicity,
            **(facts or {}),
            **({} if bands is None else {"sample_rate": sample_rate, **bands.facts}),
        },
        bands=number,
    )


@dataclass(frozen=True)
class Shares:
    """Shares of the units, each with a teacher of its own. All of it is public.

    Args:
        number (`int`): B.
        group_key (`str`): Key of the hash that assigns a unit to a share by its id, 16 bytes in hexadecimal.
        ids (`str`, defaults to `"row"`): What an id is, see `Bands`.

    Raises:
        UsageError: A value lies outside its range.
    """

    number: int
    group_key: str
    ids: str = "row"

    def __post_init__(self) -> None:
        keyed = isinstance(self.group_key, str) and re.fullmatch(r"[0-9a-f]{32}", self.group_key) and self.ids in IDS
        if not isinstance(self.number, numbers.Integral) or self.number < 1 or not keyed:
            raise UsageError("Shares are one or more, with a key of 16 bytes in hexadecimal and the kind of ids.")

    @classmethod
    def of(cls, query: dict) -> "Shares | None":
        """Those that the public facts of a row state; `None` where they state none."""
        return cls(query["shares"], query["group_key"], query["ids"]) if "shares" in query else None

    @property
    def facts(self) -> dict[str, Any]:
        """What the public facts of a row state."""
        return {"shares": self.number, "group_key": self.group_key, "ids": self.ids}


def teachers_row(
    shares: Shares,
    *,
    clip_norm: float,
    noise_multiplier: float,
    normaliser: float,
    votes: int | None = None,
    facts: dict[str, int] | None = None,
) -> LedgerRow:
    """Builds the ledger row of one round of teachers: a Gaussian mechanism on all shares.

    One unit changes what one share says from anything to anything: by `2 clip_norm`. Where a share casts one vote for
    each of `votes` inputs, they are of norm sqrt(votes), and change by sqrt(2 votes).

    Raises:
        UsageError: A value is outside its range.
        ValueError: The clip norm is not that of the votes.
    """
    if votes is not None and not math.isclose(clip_norm, math.sqrt(votes)):
        raise ValueError(f"{votes} votes have the norm {math.sqrt(votes)}, not {clip_norm}.")
    sensitivity = 2 * clip_norm if votes is None else math.sqrt(2 * votes)
    return LedgerRow(
        name=TEACHERS,
        mechanism=mechanism_of(1.0, noise_multiplier),
        noise_multiplier=noise_multiplier,
        query={
            "sensitivity": sensitivity, "clip_norm": clip_norm, "normaliser": normaliser, "noise_multiplicity": 1,
            **({} if votes is None else {"votes": votes}), **(facts or {}), **shares.facts,
        },
    )  # fmt: skip


def sampled_row(name: str, noise_multiplier: float, sample_rate: float, steps: int) -> LedgerRow:
    """Builds the ledger row of a question whose public facts are not stated yet: for plans and for calibration."""
    return LedgerRow(name, mechanism_of(sample_rate, noise_multiplier), noise_multiplier, sample_rate, steps)


def mechanism_of(sampling_probability: float, noise_multiplier: float = 1.0, bands: int | None = None) -> str:
    """Names the mechanism: Gaussian on a Poisson sample, or without noise."""
    if noise_multiplier == 0:
        return NON_PRIVATE
    if bands is not None:
        return BANDED
    return "gaussian" if sampling_probability == 1 else "poisson_gaussian"


def rate_of_coins(sample_rate: float) -> float:
    """The probability with which a uniform number of 53 bits lies below a rate: that rate, rounded up."""
    return math.ceil(sample_rate * 2**53) / 2**53


def finite_number(value: Any, what: str = "", *, field: str | None = None) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise UsageError(f"{what} must be a finite number, not {value!r}.".strip(), field=field)
    return float(value)
