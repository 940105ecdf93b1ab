# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Probes of tier A on a model: what one record can move at worst, and the noise that every parameter gets."""

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..gradients.step import Gradients
from ..mechanisms import Everyone, sampled
from ..randomness.private_generator import KEY_BYTES, PrivateGenerator
from .additivity import DrawsByRecord
from .canaries import FaultyNoise, read_tags, tag_images
from .cells import NUM_RECORDS as NUM_BLANKS
from .cells import blank_door, cell_of
from .checks import ROUNDING, Check, exact_check, random_check, std_check, z_check
from .mechanism import Audited, AuditedModel, audited_door, flat, labels_of


# By what the loss of each record is multiplied: six records, so that their groups and their order show.
ADVERSARIES = (1.0, 1e30, math.nan, math.inf, -1e4, 0.0)
# Records of a loss that is 1 times its own, among them some that share a physical batch with the worst.
NUM_RECORDS = len(ADVERSARIES) + 2
MOST_DRAWS = 32  # K of a probe


def sensitivity(step: Audited, audited: AuditedModel, noise_multiplicity: int, physical: int) -> float:
    """The largest `||sum(D) - sum(D')||` over D' with one unit zeroed out, in clip norms, without noise and under the
    same draws. A unit is a record, or two where the run has units of several images.

    D holds records of noise, of white and of zeros whose losses are ordinary, huge, infinite, no number, negative or
    zero.

    Args:
        physical (`int`): Records at a time.
    """
    key, per_unit = bytes(range(KEY_BYTES)), step.mechanism.max_images_per_unit
    images = np.random.default_rng(0).integers(0, 256, (NUM_RECORDS, *audited.image_shape), dtype=np.uint8)
    images[1], images[-1] = 255, 0
    tag_images(images, np.arange(NUM_RECORDS))
    labels = labels_of(audited.class_names, np.arange(NUM_RECORDS))
    factors = torch.tensor([*ADVERSARIES, *[1.0] * (NUM_RECORDS - len(ADVERSARIES)), 0.0], device=audited.device)

    def loss(
        model: nn.Module, rows: torch.Tensor, row_labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        numbers = read_tags(rows)
        source = (
            getattr(generator, "for_loss", generator)
            if per_unit is None
            else DrawsByRecord(numbers, NUM_RECORDS, MOST_DRAWS)
        )
        losses = audited.row_loss(model, rows, row_labels, source)
        return losses * factors[numbers.to(rows.device)]  # a blank row has the last factor

    unit_of = np.arange(NUM_RECORDS) // (1 if per_unit is None else 2)
    num_units = int(unit_of.max()) + 1
    units: dict[str, Any] = {} if per_unit is None else {"units": unit_of, "max_images_per_unit": per_unit}
    ledger = step.ledger(num_units)
    question = step.question(physical) | {
        "noise_multiplicity": noise_multiplicity,
        "mechanism": Everyone(noise_multiplier=1e3),  # the noise is off, and little of it is dear to count
    }  # fmt: skip

    def answer(missing: int | None) -> torch.Tensor:
        door = audited_door(
            images, labels, unit_of != missing, ledger=ledger, generator=FaultyNoise(0.0, key),
            class_names=audited.class_names, device=audited.device, exact=step.mechanism.exact, **units,
        )  # fmt: skip
        gradients = door.noisy_gradient(audited.model, loss, reserve_steps=num_units + 1, **question)
        return flat(gradients, step.normaliser / step.max_grad_norm)

    everybody = answer(None)
    moved = [float((everybody - answer(unit)).norm()) for unit in range(num_units)]
    return math.nan if any(math.isnan(distance) for distance in moved) else max(moved)


def sensitivity_checks(step: Audited, audited: AuditedModel, *, tight: bool, thorough: bool) -> list[Check]:
    """One record, or one unit of records, moves the sum by C at most, for K = 1 and the run's K (at most 32) and
    physical batches of any size.

    Args:
        tight (`bool`): The model's gradients are longer than C, so that the bound must be reached as well.
        thorough (`bool`): All combinations, instead of the run's K (at most 4) and two records at a time.
    """
    k = min(step.noise_multiplicity, MOST_DRAWS)
    settings = [(min(k, 4), 2)]
    if thorough:
        settings = [(draws, size) for draws in sorted({1, k}) for size in (1, 3, NUM_RECORDS)]
    found = [sensitivity(step, audited, draws, size) for draws, size in settings]
    worst = math.nan if any(math.isnan(value) for value in found) else max(found)
    kind = "stand-in" if tight else "the model"
    checks = [Check(f"sensitivity of {kind}, in C", worst, 1.0, None, worst <= 1 + ROUNDING)]
    if tight:
        checks.append(exact_check("sensitivity: least over the settings, in C", min(found), 1.0, ROUNDING))
    return checks


def parameter_noise_checks(step: Audited, audited: AuditedModel) -> list[Check]:
    """Noise alone: a step on records that are all zeroed out and two on empty samples, all under the same public
    seeds. Every parameter of the model gets the noise that is declared, and neither the seeds nor another door tell
    it."""
    std = step.noise_multiplier * step.max_grad_norm
    answers: list[Gradients] = []
    for sample_rate in (1.0, 1e-9, 1e-9):
        door = blank_door(audited.image_shape, audited.class_names, cell_of(step), audited.device)
        alone = sampled(sample_rate, step.noise_multiplier)
        small = replace(step, mechanism=alone, noise_multiplicity=min(step.noise_multiplicity, 4))
        question = small.question(NUM_BLANKS)
        with public_seeds():
            answers.append(door.noisy_gradient(audited.model, audited.row_loss, **question))
    absent = sum(name not in answer for name in audited.parameters for answer in answers)
    checks = [exact_check("noise: parameters of the model without a gradient", absent, 0)]
    for answer, words in zip(answers, ("zeroed-out records", "an empty sample"), strict=False):
        name = f"noise: standard deviation in every parameter, {words}"
        checks.append(_every_parameter(name, answer, step.normaliser, std))
    steps = [flat(answer, step.normaliser / std) for answer in answers]
    for first, second, words in zip(steps, steps[1:], ("steps", "empty steps"), strict=False):
        correlation = float((first * second).mean())
        name = f"noise: correlation of two {words} under the same public seeds"
        checks.append(z_check(name, correlation, 0.0, 1 / math.sqrt(len(first))))
    return checks


def _every_parameter(name: str, answer: Gradients, normaliser: float, std: float) -> Check:
    """The parameter that fits worst, its p-value corrected for their number (Bonferroni)."""
    each = [std_check(name, part.double().cpu().numpy() * normaliser, std) for part in answer.values()]
    p_values = np.nan_to_num([check.p_value for check in each], nan=0.0)
    return random_check(name, each[p_values.argmin()].observed, std, min(1.0, p_values.min() * len(each)))


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
