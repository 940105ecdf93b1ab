# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A training by DP-SGD beside that of the method's own network, or in a method that has none. No torch."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ..accounting.ledger_row import LedgerRow, gradient_row
from ..queries.query import Query
from .dp_sgd_flags import LoopFlags
from .method import Code


@dataclass(frozen=True, kw_only=True)
class PrivateTraining(Query):
    """
    Steps of DP-SGD as a query of the plan: with a row, noise, samples, checkpoints and a resume of its own. It is
    taken by `TrainingRun.dp_sgd` and not by `ask`, in its place among the queries.

    Args:
        settings (`LoopFlags`): Its steps, expected batch and clip norm, and how it goes on between noisy gradients.
        batch_size (`int`): Expected batch size, once N is known: see `at`.

    Attributes:
        build (`Code`): The query, public facts and device to a new `Trained`, which the pre-flight tries.
    """

    build: ClassVar[Code]
    by_label: ClassVar[bool] = False

    settings: LoopFlags
    batch_size: int = 1

    @property
    def clip_norm(self) -> float:
        return self.settings.max_grad_norm

    def at(self, num_units: int) -> Self:
        batch = min(self.settings.train_batch_size or num_units, num_units)
        return replace(self, batch_size=batch, sample_rate=batch / num_units, repeats=self.settings.max_train_steps)

    def row(self, noise_multiplier: float, **facts: Any) -> LedgerRow:
        return gradient_row(
            self.mechanism(noise_multiplier, **facts), max_grad_norm=self.clip_norm, normaliser=self.batch_size,
            noise_multiplicity=self.settings.noise_multiplicity, steps=self.repeats, name=self.name,
        )  # fmt: skip
