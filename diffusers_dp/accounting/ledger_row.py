# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Ledger rows: one query to the sensitive images each. Nothing here loads torch."""

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ..errors import UsageError
from ..files.untrusted_values import plain_facts
from ..mechanisms import Mechanism, mechanism_of
from ..mechanisms.mechanism import RESERVED, finite_number


DP_SGD, TEACHERS = "dp_sgd", "teachers"  # names of rows that have many steps
SMALLEST = 1e-30  # of a clip norm or divisor; squares of smaller ones vanish in float32


@dataclass(frozen=True)
class LedgerRow:
    """One query, before it is asked.

    Args:
        name (`str`): Stage that asks, for example `"central_images"`.
        mechanism (`Mechanism`): Who takes part, and which noise covers the answer.
        steps (`int`): Number of times that the query is asked.
        facts (`dict`): Public facts only, for example clip norm, normaliser, parameters; JSON values.

    Raises:
        UsageError: A value is outside its range.
    """

    name: str
    mechanism: Mechanism
    steps: int = 1
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fact in ("clip_norm", "normaliser"):
            if fact in self.facts:
                value = finite_number(self.facts[fact], f"The {fact.replace('_', ' ')} of {self.name!r}")
                if value < SMALLEST:
                    raise UsageError(
                        f"The {fact.replace('_', ' ')} of {self.name!r} must be at least {SMALLEST:g}, not {value:g}."
                    )
        if said := RESERVED & set(self.facts):
            raise ValueError(f"{', '.join(sorted(said))}: the mechanism of {self.name!r} states that itself.")
        if not isinstance(self.steps, numbers.Integral) or self.steps < 1:
            raise UsageError(f"The steps of {self.name!r} must be a whole number above 0, not {self.steps!r}.")
        object.__setattr__(self, "facts", plain_facts(self.facts, f"The query facts of {self.name!r}"))
        object.__setattr__(self, "steps", int(self.steps))

    @property
    def noise_multiplier(self) -> float:
        """That of the mechanism."""
        return self.mechanism.noise_multiplier

    @property
    def sampling_probability(self) -> float:
        """That of the mechanism."""
        return self.mechanism.sampling_probability

    @property
    def query(self) -> dict[str, Any]:
        """All public facts, with those of the mechanism, as a ledger states them."""
        clip_norm = self.facts.get("clip_norm")
        sensitivity = {} if clip_norm is None else {"sensitivity": self.mechanism.sensitivity(clip_norm)}
        return {**sensitivity, **self.facts, **self.mechanism.facts}

    def same_query(self, other: "LedgerRow") -> bool:
        """Whether they differ in their steps alone."""
        return self == replace(other, steps=self.steps)

    @property
    def entry(self) -> dict[str, Any]:
        """What a ledger and a receipt state of the query, as JSON values, without its steps."""
        return {"stage": self.name, **self.mechanism.fields, "query": self.query}

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Self:
        """Reads what a ledger states.

        Raises:
            UsageError: A value is outside its range, or contradicts another one.
            KeyError, TypeError: A value is missing or of another type.
        """
        mechanism = mechanism_of(entry)
        stated = entry["query"]
        facts = {key: stated[key] for key in stated if key != "sensitivity" and key not in mechanism.facts}
        row = cls(entry["stage"], mechanism, entry["steps_reserved"], facts)
        if row.query != stated:
            raise UsageError(f"The sensitivity of {row.name!r} is not that of its mechanism.")
        return row


def gradient_row(
    mechanism: Mechanism, *, max_grad_norm: float, normaliser: float, noise_multiplicity: int = 1, steps: int = 1,
    name: str | None = None,
) -> LedgerRow:  # fmt: skip
    """Builds the ledger row of steps of DP-SGD, or of rounds of teachers; of another training by its name.

    Raises:
        UsageError: A value is outside its range.
    """
    facts = {"clip_norm": max_grad_norm, "normaliser": normaliser, "noise_multiplicity": noise_multiplicity}
    return LedgerRow(name or (TEACHERS if mechanism.has_teachers else DP_SGD), mechanism, steps, facts)
