# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Teachers on shares of the units, all of which answer: a Gaussian mechanism on what they say (Chen et al. 2020,
GS-WGAN; Jordon et al. 2019, PATE-GAN)."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import UsageError
from .groups import Grouped


@dataclass(frozen=True, kw_only=True)
class Shares(Grouped):
    """Each unit is in one share, and each share has a teacher of its own.

    One unit changes what one teacher says from anything to anything: by `2 clip_norm`. Where a share casts one vote
    for each of `votes` inputs, these are of norm sqrt(votes), and change by sqrt(2 votes).

    Args:
        number (`int`): B.
        votes (`int`, *optional*): Votes of a share in a round.

    Raises:
        UsageError: A value lies outside its range.
    """

    kind = "gaussian"
    has_teachers = True

    number: int
    votes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.number, numbers.Integral) or self.number < 1:
            raise UsageError(f"Shares of the units are one or more, not {self.number!r}.")

    @property
    def num_groups(self) -> int:
        return self.number

    def sensitivity(self, clip_norm: float) -> float:
        """Raises `ValueError` where the clip norm is not that of the votes."""
        if self.votes is None:
            return 2 * clip_norm
        if not math.isclose(clip_norm, math.sqrt(self.votes)):
            raise ValueError(f"{self.votes} votes have the norm {math.sqrt(self.votes)}, not {clip_norm}.")
        return math.sqrt(2 * self.votes)

    @property
    def own_facts(self) -> dict[str, Any]:
        votes = {} if self.votes is None else {"votes": self.votes}
        return {**votes, "shares": self.number, **super().own_facts}

    @classmethod
    def is_of(cls, row: Mapping[str, Any]) -> bool:
        return super().is_of(row) and "group_key" in row["query"]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        query = row["query"]
        return cls(
            number=query["shares"], votes=query.get("votes"), group_key=query["group_key"], ids=query["ids"],
            **cls.read_common(row),
        )  # fmt: skip
