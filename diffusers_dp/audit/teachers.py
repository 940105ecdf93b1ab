# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A on teachers: stand-in teachers that one unit turns around, and the run's own on a few images of noise.

The stand-in's vector has the full clip norm, and its direction follows from one unit: with it, a share says the
opposite of what it says without it. So the bound of two clip norms is reached, and the statistic is a plain Gaussian
test.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger_row import LedgerRow
from ..mechanisms import Shares
from ..privacy.teachers import ANSWER, Teachers, Teaching
from ..randomness.keyed_hash import digests_of, group_of
from ..randomness.private_generator import KEY_BYTES
from .bounds import gaussian_estimate
from .canaries import FaultyNoise
from .cells import noise_p_values, worst_check
from .checks import ESTIMATE_CONFIDENCE, ROUNDING, Check, Outcome, exact_check, std_check, z_check
from .mechanism import NOISE_SCALES, STAND_IN_SHAPE, AuditedModel, audited_door, counting_ledger, labels_of


UNITS = 12
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
        if votes:
            return torch.stack([side, -side]).expand(INPUTS, 2)
        return side.expand(INPUTS, VALUES)

    return Teaching(
        _Lever, lambda teacher, real, real_labels, inputs, labels: -teacher(real, real_labels), blame, 2, BATCH, 1.0,
        votes=votes,
    )  # fmt: skip


def teacher_runs(
    row: LedgerRow, *, delta: float, draws: int, accountant: str = "pld", progress: Callable[[], None] | None = None
) -> list[Outcome]:
    """Rounds with and without one white unit, honest, with the noise off and with the noise halved."""
    votes = "votes" in row.query
    teaching = stand_in_teaching(votes)
    clip_norm = float(np.sqrt(INPUTS)) if votes else row.facts["clip_norm"]
    mechanism = replace(SHARES, noise_multiplier=row.noise_multiplier, votes=INPUTS if votes else None)
    sensitivity = mechanism.sensitivity(clip_norm)

    def answers(noise_scale: float, present: bool, count: int) -> np.ndarray:
        """`[count, inputs, values]`, not divided."""
        images = np.zeros((UNITS, *STAND_IN_SHAPE), dtype=np.uint8)
        images[0] = 255
        readable = np.ones(UNITS, dtype=bool)
        readable[0] = present
        ledger = counting_ledger(UNITS, delta)
        door = audited_door(images, None, readable, ledger=ledger, generator=FaultyNoise(noise_scale))
        teachers = Teachers(door, teaching, mechanism)
        found = [
            teachers.noisy_gradient(
                _Inputs(), teaching, mechanism, max_grad_norm=clip_norm, normaliser=SHARES.number, reserve_steps=count
            )[ANSWER]
            for _ in range(count)
        ]
        if progress is not None:
            progress()
        return torch.stack(found).double().numpy() * SHARES.number

    without, within = (answers(0.0, present, 2)[-1] for present in (False, True))
    signal, std = within - without, row.noise_multiplier * sensitivity
    length = float(np.linalg.norm(signal))
    certain = [
        exact_check("clipping: teachers: what one unit moves, in the sensitivity", length / sensitivity, 1.0, ROUNDING)
    ]
    claim = counting_ledger(UNITS, delta, accountant).epsilon(extra=[replace(row, steps=1)])
    outcomes = []
    for noise_scale in NOISE_SCALES:
        count = draws if noise_scale == 1 else max(10, draws // 10)
        out, inside = answers(noise_scale, False, count), answers(noise_scale, True, count)
        noise = np.concatenate([out - without, inside - within])
        p_values = noise_p_values([{"rounds": torch.from_numpy(each)} for each in noise], std)
        scores = [((part - without) * signal).sum((1, 2)) / length for part in (out, inside)]
        checks = [
            *certain,
            std_check("teachers: standard deviation of the noise", noise, std),
            worst_check("teachers", p_values),
            z_check("teachers: mean without the unit", scores[0].mean(), 0.0, std / np.sqrt(count)),
            z_check("teachers: mean with the unit", scores[1].mean(), length, std / np.sqrt(count)),
        ]
        estimate = gaussian_estimate(scores[1], scores[0], length / 2, delta, ESTIMATE_CONFIDENCE)
        outcomes.append(Outcome(noise_scale, checks, None, estimate, claim))
    return outcomes


def own_teacher_checks(row: LedgerRow, audited: AuditedModel, delta: float) -> list[Check]:
    """The run's own teaching on a few images of noise, without noise and under the same draws: two shares together say
    the sum of what each says alone, and a missing unit moves no more than the sensitivity."""
    teaching: Any = audited.row_loss
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (UNITS, *audited.image_shape), dtype=np.uint8)
    labels = labels_of(audited.class_names, np.arange(UNITS))
    share = group_of(digests_of(range(UNITS)), SHARES.number, SHARES.group_key)

    def answer(readable: np.ndarray) -> torch.Tensor:
        door = audited_door(
            images, labels, readable, ledger=counting_ledger(UNITS, delta),
            generator=FaultyNoise(0.0, bytes(KEY_BYTES)), class_names=audited.class_names,
            device=next((p.device for p in audited.model.parameters()), "cpu"),
        )  # fmt: skip
        with torch.random.fork_rng():  # the same teachers and inputs
            torch.manual_seed(0)
            mechanism = SHARES.at(votes=row.mechanism.own_facts.get("votes"))
            teachers = Teachers(door, teaching, mechanism)
            return teachers.noisy_gradient(
                audited.model, teaching, mechanism, max_grad_norm=row.facts["clip_norm"], normaliser=1.0
            )[ANSWER].double()

    everybody = answer(np.ones(UNITS, dtype=bool))
    alone = answer(share == 0) + answer(share == 1)
    moved = max(float((everybody - answer(np.arange(UNITS) != unit)).norm()) for unit in range(2))
    sensitivity = row.query["sensitivity"]
    found = moved / sensitivity
    return [
        exact_check(
            "teachers: additivity of shares, in the sensitivity", float((everybody - alone).norm()) / sensitivity, 0.0,
            ROUNDING,
        ),
        Check("teachers: what a missing unit moves, in the sensitivity", found, 1.0, None, found <= 1 + ROUNDING),
    ]  # fmt: skip
