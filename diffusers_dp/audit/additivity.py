# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Records that move each other: what all add together against the sum of what each adds alone, without noise.

A clipped sum has sensitivity C because each term is a function of its own record (Abadi et al. 2016, Section 3.1).
Where terms depend on the batch, no term need be longer than C, and no probe that takes one record away need exceed it.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from ..gradients.parts import widened
from ..gradients.step import Gradients, RowLoss
from ..mechanisms import Everyone
from ..privacy.kept_state import KeptState
from ..privacy.sensitive import SensitiveImages
from ..randomness.private_generator import KEY_BYTES, PrivateGenerator
from .canaries import FaultyNoise, read_tags, tag_images
from .checks import Check
from .mechanism import Audited, AuditedModel, audited_door, flat


NUM_RECORDS = 20  # in one physical batch
CLASS_STARTS = (10, 15, 18)  # of these records: half are of the first class, then fewer and fewer
MOST_DRAWS = 2  # K of this probe
TOLERANCE, TOLERANCE_BF16 = 1e-4, 3e-2  # relative
NO_CLIPPING = 1e9  # times C


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


def additivity_checks(step: Audited, audited: AuditedModel, name: str, tolerance: float = TOLERANCE) -> list[Check]:
    """`||sum(D) - sum_i sum({i})|| / ||sum(D)||` of DP-SGD, where D are 20 records in one physical batch, of unequal
    classes: at the run's C, where every record is cut to one length, and at a C that cuts nothing, where a loss that
    is scaled by the others shows.

    Args:
        name (`str`): What the model is.
        tolerance (`float`): For rounding; see `model_tolerance`.
    """
    images, numbers = tagged_noise(NUM_RECORDS, audited.image_shape), np.arange(NUM_RECORDS)
    labels = None
    if audited.class_names is not None:
        labels = np.minimum(np.searchsorted(CLASS_STARTS, numbers, side="right"), len(audited.class_names) - 1)
    loss = draws_by_record(audited.row_loss)

    def answer(which: np.ndarray, max_grad_norm: float) -> torch.Tensor:
        own_labels = None if labels is None else labels[which]
        return flat(noiseless_sum(step, audited, loss, images[which], own_labels, max_grad_norm)) / max_grad_norm

    checks = []
    with one_arithmetic(audited.model):
        for factor, words in ((1.0, "at C"), (NO_CLIPPING, "without clipping")):
            together = answer(numbers, factor * step.max_grad_norm)
            alone = torch.zeros_like(together)
            for i in numbers:
                alone += answer(numbers[i : i + 1], factor * step.max_grad_norm)
            checks.append(additivity_check(f"additivity of {name}, {words}", together, alone, tolerance))
    return checks


def tagged_noise(number: int, image_shape: tuple[int, ...]) -> np.ndarray:
    """Records of public noise that carry their numbers, uint8, `[number, C, H, W]`."""
    images = np.random.default_rng(0).integers(0, 256, (number, *image_shape), dtype=np.uint8)
    tag_images(images, np.arange(number))
    return images


def noiseless_sum(
    step: Audited,
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
    number = len(images)
    door = audited_door(
        images, labels, ledger=step.ledger(number), generator=FaultyNoise(0.0), kind=_Shown,
        units=None if step.mechanism.max_images_per_unit is None else np.arange(number),
        class_names=audited.class_names, device=audited.device,
    )  # fmt: skip
    question = step.question(number) | {
        "max_grad_norm": max_grad_norm, "mechanism": Everyone(noise_multiplier=1e3),  # off, and cheap to count
        "noise_multiplicity": min(step.noise_multiplicity, MOST_DRAWS),
    }  # fmt: skip
    gradients = door.noisy_gradient(audited.model, row_loss, **question)
    return {name: widened(gradient) * step.normaliser for name, gradient in gradients.items()}


class _Shown(SensitiveImages):
    """A door to records of noise, whose losses may note what they are shown."""

    def _state_of(self, model: nn.Module, row_loss: RowLoss, noise_multiplicity: int, at_most: int) -> KeptState:
        return KeptState()


def model_tolerance(bf16: bool) -> float:
    """For the run's own model, which may compute in bfloat16."""
    return TOLERANCE_BF16 if bf16 else TOLERANCE


def additivity_check(name: str, together: torch.Tensor, alone: torch.Tensor, tolerance: float = TOLERANCE) -> Check:
    error = float((together - alone).norm() / together.norm())  # NaN, which fails, where nothing was added
    return Check(f"{name}: relative difference of a sum from its terms", error, 0.0, None, error < tolerance)


def draws_by_record(row_loss: RowLoss) -> RowLoss:
    """`row_loss` with `DrawsByRecord` of tagged records."""

    def loss(
        model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        return row_loss(model, rows, labels, DrawsByRecord(read_tags(rows), NUM_RECORDS, MOST_DRAWS))

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
