# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A on teachers: stand-in teachers that one unit turns around, and the run's own on a few images of noise.

The stand-in's vector has the full clip norm, and its direction follows from one unit: with it, a share says the
opposite of what it says without it. So the bound of two clip norms is reached.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger_row import LedgerRow
from ..mechanisms import Shares
from ..privacy.sensitive import SensitiveImages
from ..privacy.teachers import ANSWER, Teachers, Teaching
from ..randomness.private_generator import KEY_BYTES
from .canaries import FaultyNoise, groups_of_rows
from .checks import Check, bounded_check
from .probes import additivity_check
from .stand_ins import STAND_IN_SHAPE, AuditedModel, audited_door, labels_of
from .targets import NUM_UNITS, AuditTarget


SHARES = Shares(noise_multiplier=1e3, number=2, group_key=bytes(range(KEY_BYTES)).hex())
INPUTS, VALUES = 4, 250
BATCH = 256  # draws of a share with replacement: a batch misses the white unit with probability below 1e-10


class _Inputs(nn.Module):
    """Public inputs that stay the same."""

    def inputs(self) -> tuple[torch.Tensor, None]:
        return torch.ones(INPUTS, 1), None


class _Lever(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        return self.weight * images.amax()


def stand_in_teaching(votes: bool) -> Teaching:
    """A weight that rises where a share has a white image, and falls where it has none."""

    def blame(teacher: Any, inputs: torch.Tensor, labels: Any) -> torch.Tensor:
        side = 1e4 * teacher(inputs, labels)
        return torch.stack([side, -side]).expand(INPUTS, 2) if votes else side.expand(INPUTS, VALUES)

    return Teaching(
        _Lever, lambda teacher, real, real_labels, inputs, labels: -teacher(real, real_labels), blame, 2, BATCH, 1.0,
        votes=votes,
    )  # fmt: skip


class TeachersTarget(AuditTarget):
    """Rounds with and without one white unit."""

    def __init__(self, row: LedgerRow):
        super().__init__(row)
        votes = "votes" in row.mechanism.own_facts
        self.teaching = stand_in_teaching(votes)
        self.clip_norm = float(np.sqrt(INPUTS)) if votes else row.facts["clip_norm"]
        self.mechanism = SHARES.at(noise_multiplier=row.noise_multiplier, votes=INPUTS if votes else None)
        self.sensitivity = self.mechanism.sensitivity(self.clip_norm)

    def answers(self, generator: FaultyNoise, present: bool, count: int) -> np.ndarray:
        images, readable = np.zeros((NUM_UNITS, *STAND_IN_SHAPE), np.uint8), np.ones(NUM_UNITS, bool)
        images[0], readable[0] = 255, present
        door: SensitiveImages = audited_door(images, None, readable, generator=generator)
        teachers = Teachers(door, self.teaching, self.mechanism)
        found = [
            teachers.noisy_gradient(
                _Inputs(), self.teaching, self.mechanism, max_grad_norm=self.clip_norm, normaliser=SHARES.number,
                reserve_steps=count,
            )[ANSWER]
            for _ in range(count)
        ]  # fmt: skip
        return torch.stack(found).double().numpy() * SHARES.number


def own_teacher_checks(row: LedgerRow, audited: AuditedModel) -> list[Check]:
    """The run's own teaching on a few images of noise, without noise and under the same draws: two shares together say
    the sum of what each says alone, and a missing unit moves no more than the sensitivity."""
    teaching: Any = audited.row_loss
    images = np.random.default_rng(0).integers(0, 256, (NUM_UNITS, *audited.image_shape), dtype=np.uint8)
    labels = labels_of(audited.class_names, np.arange(NUM_UNITS))
    mechanism = SHARES.at(votes=row.mechanism.own_facts.get("votes"))
    clip_norm, share = row.facts["clip_norm"], groups_of_rows(NUM_UNITS, SHARES)

    def answer(there: np.ndarray) -> torch.Tensor:
        readable = np.isin(np.arange(NUM_UNITS), there)
        door = audited.door(images, labels, readable, generator=FaultyNoise(0.0, bytes(KEY_BYTES)))
        with torch.random.fork_rng():  # the same teachers and inputs
            torch.manual_seed(0)
            found = Teachers(door, teaching, mechanism).noisy_gradient(
                audited.model, teaching, mechanism, max_grad_norm=clip_norm, normaliser=1.0
            )
        return found[ANSWER].double() / mechanism.sensitivity(clip_norm)

    everybody, *without = (answer(np.flatnonzero(np.arange(NUM_UNITS) != unit)) for unit in (-1, 0, 1))
    moved = max(float((everybody - other).norm()) for other in without)
    shares = [np.flatnonzero(share == number) for number in range(SHARES.number)]
    return [
        additivity_check("teachers: additivity of shares", answer, shares),
        bounded_check("teachers: what a missing unit moves, in the sensitivity", moved),
    ]
