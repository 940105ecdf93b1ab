# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What every mechanism says of itself: plan, ledger row, door, accountant, card and audit read this value alone."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ..errors import UsageError
from .band_coefficients import Workload, root_mean_square_error


if TYPE_CHECKING:
    from dp_accounting import DpEvent

#: Grid of `--noise exact`: steps to a clip norm. Of 64 vectors of that norm every sum of some is below 2^24, so that
#: float32 adds them exactly.
STEPS = 2**18
NO_EXACT_LATENTS = "--noise exact has no proof for latents, because their last bits were not tried: leave it out."
#: Facts of a mechanism that no query may state for itself.
RESERVED = frozenset({"sensitivity", "grid", "max_images_per_unit", "group_key"})
NON_PRIVATE = "non_private"  # kind of every mechanism without noise, as dp_accounting calls it
LARGEST_SUM_OF_SQUARES = 1 + 1e-9  # of coefficients scaled to norm 1; any excess is more than rounding


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A passage through the door: who takes part, and Gaussian noise. All of it is public.

    A subclass names its kind, its own facts, and what it costs. `privacy.passages` has what is torch about it.

    Args:
        noise_multiplier (`float`): Standard deviation of the noise divided by the sensitivity; finite. 0 is no noise,
            and no guarantee: only the ledger of a run with `--target_epsilon inf` takes it.
        by_label (`bool`, defaults to `False`): Whether there is a sum for each class. An image has one class, so that
            all sums together are one Gaussian mechanism (FETA-Pro Theorem 3). Units of several images have no such
            row: the mean of a unit is spread over the sums.
        exact (`bool`, defaults to `False`): `--noise exact`: sums and noise are whole numbers of `STEPS` to a clip
            norm.
        max_images_per_unit (`int`, *optional*): How many images of a unit are looked at, where a unit has several.

    Attributes:
        kind (`str`): Its name in ledgers and receipts.
        one_stream (`bool`): Whether a release has one mechanism of this kind, whose steps have positions.
        has_teachers (`bool`): Whether teachers answer, and not the units.
        by_coins (`bool`): Whether each unit takes part by a coin of its own in each step. An audit expects samples to
            vary as such coins do.

    Raises:
        UsageError: A value lies outside its range.
    """

    kind: ClassVar[str]
    one_stream: ClassVar[bool] = False
    has_teachers: ClassVar[bool] = False
    by_coins: ClassVar[bool] = True

    noise_multiplier: float
    by_label: bool = False
    exact: bool = False
    max_images_per_unit: int | None = None

    def __post_init__(self) -> None:
        sigma = finite_number(self.noise_multiplier, "A noise multiplier")
        if not sigma >= 0:
            raise UsageError(f"A noise multiplier must be at least 0, not {sigma}.")
        object.__setattr__(self, "noise_multiplier", sigma)  # numpy's numbers are not JSON

    # What it costs.

    @property
    def sampling_probability(self) -> float:
        """The probability with which a unit takes part when it can, in (0, 1]."""
        return 1.0

    @property
    def sample_rate(self) -> float:
        """The rate of all units at each step."""
        return self.sampling_probability

    def turns(self, steps: int) -> int:
        """The most of so many consecutive steps in which one unit can take part."""
        return steps

    def event(self, steps: int) -> "DpEvent":
        """What so many consecutive steps cost, as an event of dp_accounting under zero-out adjacency. A ledger adds up
        the steps of equal mechanisms first. A piece must cost so much that no way to cut a stream is cheaper than the
        whole."""
        import dp_accounting as dp

        event: DpEvent = dp.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_probability != 1:
            event = dp.PoissonSampledDpEvent(self.sampling_probability, event)
        return dp.SelfComposedDpEvent(event, self.turns(steps))

    def sensitivity(self, clip_norm: float) -> float:
        """By how much zeroing out one unit moves the sum, in L2 norm."""
        return clip_norm

    # What it is like.

    @property
    def has_noise(self) -> bool:
        """Whether it protects anything."""
        return self.noise_multiplier > 0

    @property
    def num_groups(self) -> int:
        """Groups of units, told apart by a keyed hash of their ids; 1 without groups."""
        return 1

    @property
    def remembered(self) -> int:
        """Earlier steps whose noise, or sums without noise, the first process keeps in memory."""
        return 0

    @property
    def noise_of_a_step(self) -> float:
        """Standard deviation of one step's own noise, in sensitivities."""
        return self.noise_multiplier

    def error(self, workload: Workload) -> float:
        """How much noise reaches the weights: root mean square over the steps, see `root_mean_square_error`."""
        return self.noise_multiplier * root_mean_square_error((1.0,), workload)

    @property
    def sentence(self) -> str:
        """What a plan and a card add to the noise multiplier and the sampling probability; empty if nothing."""
        return ""

    def with_noise(self, noise_multiplier: float) -> "Mechanism":
        """This mechanism with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)

    def at(self, **facts: Any) -> "Mechanism":
        """This mechanism with other values of some arguments."""
        return replace(self, **facts)

    # As JSON values.

    @property
    def own_facts(self) -> dict[str, Any]:
        """Public facts of this kind alone, from which anybody can repeat who takes part and how noise is drawn."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """What the query of a ledger row states."""
        units = {} if self.max_images_per_unit is None else {"max_images_per_unit": self.max_images_per_unit}
        return units | ({"grid": STEPS} if self.exact else {}) | self.own_facts

    @property
    def fields(self) -> dict[str, Any]:
        """What a ledger row states beside its query."""
        return {
            "mechanism": self.kind if self.has_noise else NON_PRIVATE,
            "noise_multiplier": self.noise_multiplier,
            "sampling_probability": self.sampling_probability,
            "partition": "label" if self.by_label else None,
        }

    @classmethod
    def is_of(cls, row: Mapping[str, Any]) -> bool:
        """Whether a row of a ledger, as JSON, states this kind."""
        return bool(row["mechanism"] == cls.kind)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """Reads a row of a ledger, as JSON. Raises `KeyError`, `TypeError` or `UsageError` where it is wrong."""
        return cls(**cls.read_common(row))

    @classmethod
    def read_common(cls, row: Mapping[str, Any]) -> dict[str, Any]:
        query = row["query"]
        return {
            "noise_multiplier": row["noise_multiplier"],
            "by_label": row["partition"] == "label",
            "exact": "grid" in query,
            "max_images_per_unit": query.get("max_images_per_unit"),
        }


def finite_number(value: Any, what: str = "", *, field: str | None = None) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise UsageError(f"{what} must be a finite number, not {value!r}.".strip(), field=field)
    return float(value)
