# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The list of all kinds of mechanisms: a new one is a line here."""

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .banded import Banded
from .everyone import Everyone
from .mechanism import NON_PRIVATE, Mechanism
from .poisson import Poisson
from .shares import Shares


#: Of two that have one name in a ledger, the one with more facts comes first.
KINDS: tuple[type[Mechanism], ...] = (Shares, Everyone, Poisson, Banded)


def mechanism_of(row: Mapping[str, Any]) -> Mechanism:
    """The mechanism that a row of a ledger states, as JSON.

    Raises:
        UsageError: The kind is unknown, a value lies outside its range, or facts contradict each other.
        KeyError, TypeError: A value is missing or of another type.
    """
    without = row["mechanism"] == NON_PRIVATE
    named = {**row, "mechanism": sampled(row["sampling_probability"]).kind} if without else row
    for each in KINDS:
        if each.is_of(named):
            mechanism = each.read(row)
            stated = {**{name: row.get(name) for name in ("bands", *mechanism.fields)}, **row["query"]}
            meant = {"bands": None, **mechanism.fields, **mechanism.facts}
            for name, value in meant.items():
                if stated.get(name) != value:
                    raise UsageError(
                        f"The {name} of a {mechanism.kind} row is {stated.get(name)!r}, and means {value!r}."
                    )
            return mechanism
    raise UsageError(f"The mechanism {row['mechanism']!r} is unknown.")


def sampled(sample_rate: float, noise_multiplier: float = 1.0, **facts: Any) -> Mechanism:
    """Independent noise on all units, or on a Poisson sample of them where the rate is below 1.

    Args:
        sample_rate (`float`): q, in (0, 1].
        noise_multiplier (`float`, defaults to 1): 0 in a run without guarantee.
        facts: Of `Mechanism`.

    Raises:
        UsageError: A value lies outside its range.
    """
    if sample_rate == 1:
        return Everyone(noise_multiplier=noise_multiplier, **facts)
    return Poisson(noise_multiplier=noise_multiplier, rate=sample_rate, **facts)
