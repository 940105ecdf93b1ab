# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Probes of DP-SGD without noise, on a model and a few records: what one unit can move at worst, and whether records
move each other.

A clipped sum has sensitivity C because each term is a function of its own record (Abadi et al. 2016, Section 3.1).
Where terms depend on the batch, no term need be longer than C, and no probe that takes one record away need exceed it.
So what all add together is held against the sum of what each adds alone.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger_row import LedgerRow
from ..gradients.parts import widened
from ..gradients.step import Gradients, RowLoss
from ..mechanisms import Everyone
from ..privacy.kept_state import KeptState
from ..privacy.sensitive import SensitiveImages
from ..randomness.private_generator import KEY_BYTES, PrivateGenerator
from .canaries import FaultyNoise, read_tags, tag_images
from .checks import ROUNDING, Check, bounded_check, exact_check
from .stand_ins import AuditedModel, audited_door, flat, labels_of, step_options, tagged_noise


# By what the loss of each record is multiplied: six records, so that their groups and their order show; then two of an
# ordinary loss, some of which share a physical batch with the worst; and a blank row.
FACTORS = (1.0, 1e30, math.nan, math.inf, -1e4, 0.0, 1.0, 1.0, 0.0)
NUM_RECORDS = len(FACTORS) - 1
NUM_TOGETHER = 20  # in one physical batch
CLASS_STARTS = (10, 15, 18)  # of these records: half are of the first class, then fewer and fewer
MOST_DRAWS = 32  # K of a probe of sensitivity
MOST_DRAWS_TOGETHER = 2  # K of the others
TOLERANCE, TOLERANCE_BF16 = 1e-4, 3e-2  # relative
NO_CLIPPING = 1e9  # times C
NO_NOISE = 1e3  # off, and cheap to count


class DrawsByRecord(PrivateGenerator):
    """Draws that belong to a record and its repetition, wherever their rows lie and whoever else is there.

    A draw that is not one for each row is the same for all records.

    Args:
        numbers (`torch.LongTensor` of shape `[rows]`): Record of each row, less than `records`.
        records, draws (`int`): How many there are, and how many repetitions of each at most.
    """

    def __init__(self, numbers: torch.Tensor, records: int, draws: int):
        super().__init__(bytes(KEY_BYTES))
        self.numbers, self.table = numbers.numpy(), (records, draws)
        same = np.equal.outer(self.numbers, self.numbers)
        self.repetitions = np.tril(same, -1).sum(1) % draws  # the door also shows rows of no record

    def normal(
        self, shape: torch.Size | tuple[int, ...], std: float, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        shape = tuple(shape)
        if shape[:1] != self.numbers.shape:
            return super().normal(shape[1:], std).expand(shape).to(device)
        return super().normal((*self.table, *shape[1:]), std)[self.numbers, self.repetitions].to(device)

    def uniform(self, size: int) -> np.ndarray:
        if size != len(self.numbers):
            return np.repeat(super().uniform(1), size)
        return super().uniform(self.table[0] * self.table[1]).reshape(self.table)[self.numbers, self.repetitions]


class _Shown(SensitiveImages):
    """A door to records of noise, whose losses may note what they are shown."""

    def _state_of(self, model: nn.Module, row_loss: RowLoss, noise_multiplicity: int, at_most: int) -> KeptState:
        return KeptState()


def sensitivity(row: LedgerRow, audited: AuditedModel, noise_multiplicity: int, physical: int) -> float:
    """The largest `||sum(D) - sum(D')||` over D' with one unit zeroed out, in clip norms, without noise and under the
    same draws. A unit is a record, or two where the run has units of several images.

    D holds records of noise, of white and of zeros whose losses are ordinary, huge, infinite, no number, negative or
    zero.

    Args:
        physical (`int`): Records at a time.
    """
    key, per_unit, clip_norm = bytes(range(KEY_BYTES)), row.mechanism.max_images_per_unit, row.facts["clip_norm"]
    images, numbers = tagged_noise(NUM_RECORDS, audited.image_shape), np.arange(NUM_RECORDS)
    images[1], images[-1] = 255, 0
    tag_images(images, numbers)
    factors = torch.tensor(FACTORS, device=audited.device)
    own = audited.row_loss if per_unit is None else draws_by_record(audited.row_loss, NUM_RECORDS, MOST_DRAWS)

    def loss(
        model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        losses = own(model, rows, labels, getattr(generator, "for_loss", generator))
        return losses * factors[read_tags(rows).to(rows.device)]  # a blank row has the last factor

    unit_of = numbers // (1 if per_unit is None else 2)
    options: dict[str, Any] = {} if per_unit is None else {"units": unit_of, "max_images_per_unit": per_unit}

    def answer(missing: int | None) -> torch.Tensor:
        door = audited_door(
            images, labels_of(audited.class_names, numbers), unit_of != missing, generator=FaultyNoise(0.0, key),
            class_names=audited.class_names, device=audited.device, exact=row.mechanism.exact, **options,
        )  # fmt: skip
        query = step_options(
            row, physical, mechanism=Everyone(noise_multiplier=NO_NOISE), noise_multiplicity=noise_multiplicity
        )
        return flat(door.noisy_gradient(audited.model, loss, **query), row.facts["normaliser"] / clip_norm)

    everybody = answer(None)
    moved = [float((everybody - answer(unit)).norm()) for unit in range(int(unit_of.max()) + 1)]
    return float(np.max(moved))  # NaN if one of them is


def sensitivity_checks(row: LedgerRow, audited: AuditedModel, *, tight: bool, thorough: bool) -> list[Check]:
    """One record, or one unit of records, moves the sum by C at most, for K = 1 and the run's K (at most 32) and
    physical batches of any size.

    Args:
        tight (`bool`): The model's gradients are longer than C, so that the bound must be reached as well.
        thorough (`bool`): All combinations, instead of the run's K (at most 4) and two records at a time.
    """
    k = min(row.facts["noise_multiplicity"], MOST_DRAWS)
    settings = [(min(k, 4), 2)]
    if thorough:
        settings = [(draws, size) for draws in sorted({1, k}) for size in (1, 3, NUM_RECORDS)]
    found = [sensitivity(row, audited, draws, size) for draws, size in settings]
    kind = "stand-in" if tight else "the model"
    checks = [bounded_check(f"sensitivity of {kind}, in C", float(np.max(found)))]
    if tight:
        checks.append(exact_check("sensitivity: least over the settings, in C", min(found), 1.0, ROUNDING))
    return checks


def additivity_checks(row: LedgerRow, audited: AuditedModel, name: str, tolerance: float = TOLERANCE) -> list[Check]:
    """`||sum(D) - sum_i sum({i})|| / ||sum(D)||` of DP-SGD, where D are 20 records in one physical batch, of unequal
    classes: at the run's C, where every record is cut to one length, and at a C that cuts nothing, where a loss that
    is scaled by the others shows.

    Args:
        name (`str`): What the model is.
        tolerance (`float`): For rounding; see `model_tolerance`.
    """
    images, numbers = tagged_noise(NUM_TOGETHER, audited.image_shape), np.arange(NUM_TOGETHER)
    labels = None
    if audited.class_names is not None:
        labels = np.minimum(np.searchsorted(CLASS_STARTS, numbers, side="right"), len(audited.class_names) - 1)
    loss = draws_by_record(audited.row_loss)

    def answer(which: np.ndarray, max_grad_norm: float) -> torch.Tensor:
        own_labels = None if labels is None else labels[which]
        return flat(noiseless_sum(row, audited, loss, images[which], own_labels, max_grad_norm)) / max_grad_norm

    checks = []
    with one_arithmetic(audited.model):
        for factor, words in ((1.0, "at C"), (NO_CLIPPING, "without clipping")):
            together, *alone = (
                answer(which, factor * row.facts["clip_norm"]) for which in (numbers, *numbers[:, None])
            )
            checks.append(additivity_check(f"additivity of {name}, {words}", together, alone, tolerance))
    return checks


def additivity_check(
    name: str, together: torch.Tensor, alone: Sequence[torch.Tensor], tolerance: float = TOLERANCE
) -> Check:
    error = float(
        (together - torch.stack([*alone]).sum(0)).norm() / together.norm()
    )  # NaN, which fails, where nothing was added
    return Check(f"{name}: relative difference of a sum from its terms", error, 0.0, None, error < tolerance)


def model_tolerance(bf16: bool) -> float:
    """For the run's own model, which may compute in bfloat16."""
    return TOLERANCE_BF16 if bf16 else TOLERANCE


def noiseless_sum(
    row: LedgerRow,
    audited: AuditedModel,
    row_loss: RowLoss,
    images: np.ndarray,
    labels: np.ndarray | None,
    max_grad_norm: float,
) -> Gradients:
    """The sum of clipped gradients behind one step of the real door, in which all of these records take part, in one
    physical batch. Each is a unit of its own.

    Args:
        row_loss (`RowLoss`): In place of the model's own.
        max_grad_norm (`float`): In place of the run's C.
    """
    door = audited_door(
        images, labels, kind=_Shown, generator=FaultyNoise(0.0), class_names=audited.class_names,
        device=audited.device, units=None if row.mechanism.max_images_per_unit is None else np.arange(len(images)),
    )  # fmt: skip
    query = step_options(
        row, len(images), mechanism=Everyone(noise_multiplier=NO_NOISE), max_grad_norm=max_grad_norm,
        noise_multiplicity=min(row.facts["noise_multiplicity"], MOST_DRAWS_TOGETHER),
    )  # fmt: skip
    gradients = door.noisy_gradient(audited.model, row_loss, **query)
    return {name: widened(gradient) * row.facts["normaliser"] for name, gradient in gradients.items()}


def draws_by_record(row_loss: RowLoss, records: int = NUM_TOGETHER, draws: int = MOST_DRAWS_TOGETHER) -> RowLoss:
    """`row_loss` with `DrawsByRecord` of tagged records."""

    def loss(
        model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        return row_loss(model, rows, labels, DrawsByRecord(read_tags(rows), records, draws))

    return loss


@contextlib.contextmanager
def one_arithmetic(model: nn.Module) -> Iterator[None]:
    """Nothing that makes the same row come out differently in another batch: no dropout, no TF32."""
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    for module in dropouts:
        module.eval()
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        for module in dropouts:
            module.train()
