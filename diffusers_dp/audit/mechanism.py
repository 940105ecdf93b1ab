# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A: the run's mechanism, without the run's data: its sampler, clipper, noise and divisor, in seconds.

Stand-in records take the place of the images, few enough to be quick; sample rate, noise multiplier, clip norm, noise
multiplicity and divisor are the run's own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import gradient_row
from ..gradients.step import Gradients, RowLoss
from ..mechanisms import Mechanism
from ..privacy.sensitive import SensitiveImages
from ..randomness.private_generator import PrivateGenerator
from ..runs.plan import Plan
from .bands import enough_steps
from .canaries import FaultyNoise, Watch, WatchedImages, tag_images
from .checks import NUM_FIXED_COINS, Check, Declared, Outcome, exact_check, judge


NOISE_SCALES = (1.0, 0.0, 0.5)  # honest, off, halved
STAND_IN_SHAPE = (1, 8, 8)
ANY_EPSILON = 1e6  # target of a ledger that only counts
RECORDS_PER_STEP = 300
FEWEST_RECORDS, MOST_RECORDS = 600, 2000
FEWEST_STEPS, MOST_STEPS = 60, 400
QUICK_STEPS, QUICK_STEPS_BROKEN, QUICK_NOISE = 200, 20, 4.0
STEPS_PER_RECORD = 6  # that a record takes part in, on average


@dataclass(frozen=True)
class Audited:
    """DP-SGD of a run.

    Args:
        mechanism (`Mechanism`): Who takes part, and sigma.
        max_grad_norm, normaliser, noise_multiplicity: C, divisor and K.
        delta (`float`): delta of the claim.
    """

    mechanism: Mechanism
    max_grad_norm: float
    normaliser: float
    noise_multiplicity: int
    delta: float

    @classmethod
    def of(cls, plan: Plan) -> "Audited":
        row = plan.rows["dp_sgd"]
        return cls(
            row.mechanism, row.facts["clip_norm"], row.facts["normaliser"], row.facts["noise_multiplicity"],
            plan.ledger.target_delta,
        )  # fmt: skip

    @property
    def noise_multiplier(self) -> float:
        return self.mechanism.noise_multiplier

    @property
    def facts(self) -> dict[str, Any]:
        """Its numbers, for a report."""
        names = ("noise_multiplier", "max_grad_norm", "normaliser", "noise_multiplicity")
        groups = {} if self.mechanism.num_groups == 1 else {"noise_bands": self.mechanism.num_groups}
        return {"sample_rate": self.mechanism.sample_rate, **{name: getattr(self, name) for name in names}, **groups}

    def question(self, max_physical_batch_size: int) -> dict[str, Any]:
        """Arguments of `noisy_gradient`."""
        return {
            "mechanism": self.mechanism, "max_grad_norm": self.max_grad_norm, "normaliser": self.normaliser,
            "noise_multiplicity": self.noise_multiplicity, "max_physical_batch_size": max_physical_batch_size,
        }  # fmt: skip

    def ledger(self, num_images: int) -> PrivacyLedger:
        return counting_ledger(num_images, self.delta)


def counting_ledger(num_images: int, delta: float, accountant: str = "rdp") -> PrivacyLedger:
    """One that only counts; by RDP, because PLD takes a second where epsilon is large."""
    return PrivacyLedger(
        None, target_epsilon=ANY_EPSILON, target_delta=delta, num_images=num_images, accountant=accountant
    )


def audited_door(
    images: np.ndarray,
    labels: np.ndarray | None,
    readable: np.ndarray | None = None,
    *,
    ledger: PrivacyLedger,
    generator: PrivateGenerator | None = None,
    units: np.ndarray | None = None,
    kind: type[SensitiveImages] = SensitiveImages,
    **options: Any,
) -> SensitiveImages:
    """The real door to stand-in records.

    Args:
        readable (`np.ndarray` of bool, *optional*): Records that are there; all of them by default.
        generator (`PrivateGenerator`, *optional*): In place of the real one.
        units (`np.ndarray`, *optional*): Unit of each record, from 0 on without a gap.
        options: As for `SensitiveImages`.
    """
    if units is not None:
        options |= {"units": units, "num_units": int(units.max()) + 1}
    options.setdefault("num_images", len(images))
    door = kind(images, labels, readable, image_shape=images.shape[1:], ledger=ledger, **options)
    if generator is not None:
        door._generator = generator
    return door


def labels_of(class_names: tuple[str, ...] | None, numbers: np.ndarray) -> np.ndarray | None:
    """Classes that records with these numbers take in turn."""
    return None if class_names is None else numbers % len(class_names)


def size_of_audit(step: Audited, quick: bool) -> tuple[int, list[int]]:
    """Records, and steps of the three runs: enough that a record takes part in six, as far as that is quick."""
    records = math.ceil(RECORDS_PER_STEP / step.mechanism.sample_rate)
    steps = math.ceil(STEPS_PER_RECORD / step.mechanism.sample_rate)
    steps = max(FEWEST_STEPS, min(MOST_STEPS, steps))
    broken = steps
    if quick:  # noise of the wrong size shows in any number of steps
        steps, broken = min(steps, QUICK_STEPS), QUICK_STEPS_BROKEN
    steps, broken = (enough_steps(number, step.mechanism) for number in (steps, broken))
    return max(FEWEST_RECORDS, min(MOST_RECORDS, records)), [steps, broken, broken]


def canary_runs(step: Audited, *, quick: bool = False, progress: Callable[[], None] | None = None) -> list[Outcome]:
    """Canaries through the door, honest, with the noise off and with the noise halved; see `checks.judge`. All three
    are held against what the honest run is said to cost."""
    num_records, lengths = size_of_audit(step, quick)
    num_canaries = num_records // 2
    taken, readable = flip_coins(num_records, num_canaries)
    images = np.random.default_rng().integers(0, 256, (num_records, *STAND_IN_SHAPE), dtype=np.uint8)
    tag_images(images, np.arange(num_records))
    physical = math.ceil(num_records * step.mechanism.sample_rate / 3)  # several to a step
    question = step.question(physical)
    outcomes: list[Outcome] = []
    claim = 0.0
    for noise_scale, steps in zip(NOISE_SCALES, lengths, strict=True):
        watch, ledger = Watch(num_canaries), step.ledger(num_records)
        door = WatchedImages(
            images, None, readable, num_images=num_records, image_shape=STAND_IN_SHAPE, ledger=ledger,
            watch=watch, generator=FaultyNoise(noise_scale), after_step=progress, exact=step.mechanism.exact,
        )  # fmt: skip
        model = stand_in_model()
        for _ in range(steps):
            door.noisy_gradient(model, stand_in_loss, reserve_steps=lengths[0], **question)
        if noise_scale == 1:
            claim = ledger.epsilon(None if quick else "pld")
        declared = Declared(
            steps, num_records, step.mechanism, step.max_grad_norm, step.normaliser, step.noise_multiplicity, claim,
            step.delta,
        )  # fmt: skip
        outcome = judge(watch, declared, taken, np.flatnonzero(readable), noise_scale)
        outcomes.append(replace(outcome, checks=[*ledger_checks(ledger, step, steps), *outcome.checks]))
    return outcomes


def flip_coins(num_records: int, num_canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """A fair coin for each canary but the first two, of records 0 to `num_canaries` - 1; the others are all there.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Whether each canary takes part, `[num_canaries]`, and whether each record
        does, `[num_records]`. Both sides have a canary at least.
    """
    taken = np.random.default_rng().random(num_canaries) < 0.5
    taken[:NUM_FIXED_COINS] = True, False  # so that neither side can be empty
    return taken, np.concatenate([taken, np.ones(num_records - num_canaries, dtype=bool)])


def ledger_checks(ledger: PrivacyLedger, step: Audited, steps: int) -> list[Check]:
    """What was written down is what was asked."""
    rows = [row for row in ledger.rows if row["stage"] == "dp_sgd"]
    asked = gradient_row(  # no record is of a unit of several
        step.mechanism.at(max_images_per_unit=None), max_grad_norm=step.max_grad_norm, normaliser=step.normaliser,
        noise_multiplicity=step.noise_multiplicity,
    ).entry  # fmt: skip
    wrong = sum(row[name] != value for row in rows for name, value in asked.items())
    return [
        exact_check("ledger: steps", sum(row["steps_executed"] for row in rows), steps),
        exact_check("ledger: facts that differ from the question", wrong, 0),
    ]


def stand_in_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(STAND_IN_SHAPE), 1))


def stand_in_loss(
    model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
) -> torch.Tensor:
    """Every record pulls at the same weights, harder than the clip norm, to a side that the row's own draw decides."""
    return 1000 * model(rows).squeeze(1) * generator.normal((len(rows),), 1.0, rows.device)


@dataclass(frozen=True)
class AuditedModel:
    """A model, its loss, and what it is shown.

    Args:
        model, row_loss: As for `SensitiveImages.noisy_gradient`.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        class_names (`tuple[str, ...]`, *optional*): The label set.
    """

    model: nn.Module
    row_loss: RowLoss
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...] | None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def stand_in() -> AuditedModel:
    return AuditedModel(stand_in_model(), stand_in_loss, STAND_IN_SHAPE, None)


def flat(gradients: Gradients, scale: float = 1.0) -> torch.Tensor:
    return torch.cat([gradients[name].detach().flatten().cpu() for name in sorted(gradients)]).double() * scale
