# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Probes of DP-SGD on a model and a few records: without noise, what one unit can move at worst, and whether records
move each other; without records, the noise on every parameter.

A clipped sum has sensitivity C because each term is a function of its own record (Abadi et al. 2016, Section 3.1).
Where terms depend on the batch, no term need be longer than C, and no probe that takes one record away need exceed it.
So what all add together is held against the sum of what each adds alone.
"""

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger_row import LedgerRow
from ..gradients.parts import ieee_float32, widened
from ..gradients.step import Gradients, RowLoss
from ..mechanisms import Everyone, Mechanism, sampled
from ..randomness.private_generator import KEY_BYTES, PrivateGenerator
from .canaries import FaultyNoise, NotingImages, read_tags, tag_images, whitened
from .checks import ROUNDING, Check, bounded_check, exact_check, noise_p_values, worst_checks
from .stand_ins import AuditedModel, flat, labels_of, stand_in, step_options, tagged_noise


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
NUM_BLANKS, ASKS = 4, 4  # of doors whose noise is looked at


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

    def normal(self, shape: tuple[int, ...], std: float, device: torch.device | str = "cpu") -> torch.Tensor:
        shape = tuple(shape)
        if shape[:1] != self.numbers.shape:
            return super().normal(shape[1:], std).expand(shape).to(device)
        return super().normal((*self.table, *shape[1:]), std)[self.numbers, self.repetitions].to(device)

    def uniform(self, size: int) -> np.ndarray:
        if size != len(self.numbers):
            return np.repeat(super().uniform(1), size)
        return super().uniform(self.table[0] * self.table[1]).reshape(self.table)[self.numbers, self.repetitions]


def sensitivity(row: LedgerRow, noise_multiplicity: int, physical: int) -> float:
    """The largest `||sum(D) - sum(D')||` over D' with one unit zeroed out, in clip norms, without noise and under the
    same draws, of a stand-in's model. A unit is a record, or two where the run has units of several images.

    D holds records of noise, of white and of zeros whose losses are ordinary, huge, infinite, no number, negative or
    zero.

    Args:
        physical (`int`): Records at a time.
    """
    key, per_unit, clip_norm = bytes(range(KEY_BYTES)), row.mechanism.max_images_per_unit, row.facts["clip_norm"]
    audited, numbers = stand_in(), np.arange(NUM_RECORDS)
    images, factors = tagged_noise(NUM_RECORDS, audited.image_shape), torch.tensor(FACTORS)
    images[1], images[-1] = 255, 0
    tag_images(images, numbers)
    own = audited.row_loss if per_unit is None else draws_by_record(audited.row_loss, NUM_RECORDS, MOST_DRAWS)

    def loss(
        model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        losses = own(model, rows, labels, getattr(generator, "for_loss", generator))
        return losses * factors[read_tags(rows)]  # a blank row has the last factor

    unit_of = numbers // (1 if per_unit is None else 2)
    options: dict[str, Any] = {} if per_unit is None else {"units": unit_of, "max_images_per_unit": per_unit}

    def answer(missing: int | None) -> torch.Tensor:
        there, generator = unit_of != missing, FaultyNoise(0.0, key)
        door = audited.door(images, None, there, generator=generator, exact=row.mechanism.exact, **options)
        query = step_options(
            row, physical, mechanism=Everyone(noise_multiplier=NO_NOISE), noise_multiplicity=noise_multiplicity
        )
        return flat(door.noisy_gradient(audited.model, loss, **query), row.facts["normaliser"] / clip_norm)

    everybody = answer(None)
    moved = [float((everybody - answer(unit)).norm()) for unit in range(int(unit_of.max()) + 1)]
    return float(np.max(moved))  # NaN if one of them is


def sensitivity_checks(row: LedgerRow, *, thorough: bool) -> list[Check]:
    """A record, or a unit of them, whose gradient is longer than C moves the sum by C, for K = 1 and the run's K (at
    most 32) and physical batches of any size. (What a model adds follows: its records do not move each other.)

    Args:
        thorough (`bool`): All combinations, instead of the run's K (at most 4) and two records at a time.
    """
    k = min(row.facts["noise_multiplicity"], MOST_DRAWS)
    settings = [(min(k, 4), 2)]
    if thorough:
        settings = [(draws, size) for draws in sorted({1, k}) for size in (1, 3, NUM_RECORDS)]
    found = [sensitivity(row, draws, size) for draws, size in settings]
    return [
        bounded_check("sensitivity: largest over the settings, in C", float(np.max(found))),
        exact_check("sensitivity: least over the settings, in C", min(found), 1.0, ROUNDING),
    ]


def additivity_checks(row: LedgerRow, audited: AuditedModel, name: str, tolerance: float = TOLERANCE) -> list[Check]:
    """`||sum(D) - sum_i sum({i})|| / ||sum(D)||` of DP-SGD, where D are 20 records in one physical batch, of unequal
    classes: at the run's C, where every record is cut to one length, and at a C that cuts nothing, where a loss that
    is scaled by the others shows.

    Args:
        name (`str`): What the model is.
        tolerance (`float`): For rounding; a run's own model may compute in bfloat16.
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
            at = functools.partial(answer, max_grad_norm=factor * row.facts["clip_norm"])
            checks.append(additivity_check(f"additivity of {name}, {words}", at, numbers[:, None], tolerance))
    return checks


def additivity_check(
    name: str,
    answer: Callable[[np.ndarray], torch.Tensor],
    parts: Sequence[np.ndarray] | np.ndarray,
    tolerance: float = TOLERANCE,
) -> Check:
    """Holds what all records add together against the sum of what the parts add.

    Args:
        answer (`Callable`): The noiseless answer of the records with these numbers.
        parts (sequence of `np.ndarray`): Numbers of records, each in one part.
    """
    rest = answer(np.sort(np.concatenate(parts)))
    total = rest.norm()
    for part in parts:  # one at a time: an answer has as many numbers as the model
        rest = rest - answer(part)
    error = float(rest.norm() / total)  # NaN, which fails, where nothing was added
    return Check(f"{name}: relative difference of a sum from its terms", error, 0.0, None, error < tolerance)


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
    units = None if row.mechanism.max_images_per_unit is None else np.arange(len(images))
    door = audited.door(images, labels, kind=NotingImages, generator=FaultyNoise(0.0), units=units)
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
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), ieee_float32():
            yield
    finally:
        for module in dropouts:
            module.train()


def noise_checks_at_the_door(row: LedgerRow, audited: AuditedModel) -> list[Check]:
    """Standard deviation and whiteness of a run's steps: of each the worst p-value, corrected for their number.

    Args:
        audited (`AuditedModel`): Whose parameters get the noise.
    """
    std = row.noise_multiplier * row.facts["clip_norm"] / row.facts["normaliser"]
    found: dict[str, float] = {}
    for words, tensors in _noise_of_steps(row, audited):
        found |= {f"{name}, {words}": p for name, p in noise_p_values(tensors, std).items()}
    return worst_checks("noise at the door", found)


def _noise_of_steps(row: LedgerRow, audited: AuditedModel) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """White noise `[answers, ...]` of four steps of a run, and of three doors under the same public seeds. No record
    can be read, so that an answer is its noise, from the real generator."""
    run, numbers = row.mechanism, np.arange(NUM_BLANKS)
    units = None if run.max_images_per_unit is None else numbers

    def steps(mechanism: Mechanism, number: int) -> Iterator[Gradients]:
        blanks = np.zeros((NUM_BLANKS, *audited.image_shape), dtype=np.uint8)
        labels = labels_of(audited.class_names, numbers)
        door = audited.door(blanks, labels, numbers < 0, units=units, exact=run.exact)
        few = min(row.facts["noise_multiplicity"], 2)
        query = step_options(row, NUM_BLANKS, mechanism=mechanism, noise_multiplicity=few, reserve_steps=number)
        nothing = {name: torch.zeros_like(parameter) for name, parameter in audited.parameters.items()}
        for _ in range(number):  # a parameter without a gradient has no noise
            yield nothing | door.noisy_gradient(audited.model, audited.row_loss, **query)

    def stacked(answers: list[Gradients]) -> dict[str, np.ndarray]:
        return {name: torch.stack([a[name] for a in answers]).double().cpu().numpy() for name in answers[0]}

    yield "a step", {name: whitened(noise, run) for name, noise in stacked(list(steps(run, ASKS))).items()}
    seeded = list[Gradients]()
    for rate in (1.0, 1e-9, 1e-9):  # all records, which are zeroed out, and empty samples, each at a door of its own
        with public_seeds():
            seeded += steps(sampled(rate, run.noise_multiplier), 1)
    yield "a step under the same public seeds", stacked(seeded)


@contextlib.contextmanager
def public_seeds() -> Iterator[None]:
    """Every public generator starts at 0, and is put back afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
