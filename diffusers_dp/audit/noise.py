# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The noise of every way to ask the door: images or units, in floating point or exact, for a step, a query and the
query about a finished model.

No record can be read, so that an answer is its noise, from the real generator. A fault in one branch of the code shows
in one cell only.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy import stats

from ..accounting.ledger_row import LedgerRow
from ..evaluation.charged import Judge
from ..evaluation.images import ImageSet
from ..gradients.step import Gradients
from ..mechanisms import Everyone, Mechanism, sampled
from ..privacy.sensitive import SensitiveImages
from .checks import Check, random_check, std_check
from .stand_ins import STAND_IN_SHAPE, AuditedModel, audited_door, labels_of, step_options
from .turns import whitened


NUM_RECORDS = 4
IMAGES_PER_UNIT = 8  # at most, of a cell of units
QUERY_VALUES = 1000  # of each class
ASKS = 4
MOST_VALUES = 200_000  # of a parameter, from its start, whose correlations are looked at
FEWEST_VALUES = 30  # whose correlation says something
STAND_IN_CLASSES = ("a", "b", "c")


def cells_of(mechanism: Mechanism) -> list[Mechanism]:
    """A run's mechanism in each way to ask."""
    images = mechanism.at(exact=False, max_images_per_unit=None)
    return [images, images.at(max_images_per_unit=IMAGES_PER_UNIT), images.at(exact=True)]


def cell_name(cell: Mechanism) -> str:
    return ("images" if cell.max_images_per_unit is None else "units") + ", exact" * cell.exact


def cell_checks(row: LedgerRow, audited: AuditedModel, cells: Sequence[Mechanism]) -> list[Check]:
    """Standard deviation and whiteness over all queries in these cells: of each the worst p-value, corrected for
    their number.

    Args:
        audited (`AuditedModel`): Whose parameters get the noise of a step.
    """
    found: dict[str, float] = {}
    for cell in cells:
        for words, answers, std in noise_of_cell(row, audited, cell):
            found |= {f"{name}, {words} ({cell_name(cell)})": p for name, p in noise_p_values(answers, std).items()}
    return [
        worst_check("noise at the door", {name: p for name, p in found.items() if name.startswith(kind)})
        for kind in ("standard deviation", "correlation")
    ]


def worst_check(prefix: str, p_values: dict[str, float]) -> Check:
    """The least of these p-values, corrected for their number (Bonferroni)."""
    worst = min(p_values, key=lambda name: p_values[name])
    p_value = min(1.0, p_values[worst] * len(p_values))
    return random_check(f"{prefix}: {worst}: p-value", p_values[worst], 1.0, p_value)


def noise_of_cell(
    row: LedgerRow, audited: AuditedModel, cell: Mechanism
) -> Iterator[tuple[str, list[Gradients], float]]:
    """Each query's name, its answers, and the standard deviation that they should have."""
    sigma, clip_norm = cell.noise_multiplier, row.facts["clip_norm"]
    std, few = sigma * clip_norm / row.facts["normaliser"], min(row.facts["noise_multiplicity"], 2)

    def steps(mechanism: Mechanism, number: int) -> Iterator[Gradients]:
        door = blank_door(audited.image_shape, audited.class_names, cell, audited.device)
        options = step_options(row, NUM_RECORDS, mechanism=mechanism, noise_multiplicity=few, reserve_steps=number)
        nothing = {name: torch.zeros_like(parameter) for name, parameter in audited.parameters.items()}
        for _ in range(number):  # a parameter without a gradient has no noise
            yield nothing | door.noisy_gradient(audited.model, audited.row_loss, **options)

    own = list(steps(cell if cell.num_groups > 1 else sampled(0.5, sigma), ASKS))
    white = {name: whitened(torch.stack([answer[name] for answer in own]), cell) for name in own[0]}
    yield "a step", [{name: values[number] for name, values in white.items()} for number in range(ASKS)], std
    seeded = list[Gradients]()
    for rate in (1.0, 1e-9, 1e-9):  # all records, which are zeroed out, and empty samples, each at a door of its own
        with public_seeds():
            seeded += steps(sampled(rate, sigma), 1)
    yield "a step under the same public seeds", seeded, std
    door = blank_door(STAND_IN_SHAPE, STAND_IN_CLASSES, cell)
    answer = door.noisy_sum(
        lambda x, _: x.new_zeros(len(x), QUERY_VALUES), sampled(0.5, sigma, by_label=True), clip_norm=clip_norm,
        name="query", repeats=ASKS,
    )  # fmt: skip
    yield "a query", [{"classes and values": each} for each in answer], sigma * clip_norm
    judge = untrained_judge(STAND_IN_SHAPE, STAND_IN_CLASSES)
    reserved = LedgerRow("evaluation_reserve", Everyone(noise_multiplier=sigma))
    asked = [{"classes and values": judge.ask(door, reserved)} for _ in range(ASKS)]
    yield "the query about a finished model", asked, sigma * judge.query.clip_norm


def blank_door(
    image_shape: tuple[int, ...],
    class_names: tuple[str, ...] | None,
    cell: Mechanism,
    device: torch.device | str = "cpu",
) -> SensitiveImages:
    """To records of which none can be read."""
    numbers = np.arange(NUM_RECORDS)
    return audited_door(
        np.zeros((NUM_RECORDS, *image_shape), dtype=np.uint8), labels_of(class_names, numbers), numbers < 0,
        units=None if cell.max_images_per_unit is None else numbers, class_names=class_names, device=device,
        exact=cell.exact,
    )  # fmt: skip


def untrained_judge(image_shape: tuple[int, ...], class_names: tuple[str, ...] | None) -> Judge:
    """The query about a finished model, about images of noise; its classifier has learnt nothing, for only the sum
    is audited."""
    count = 4 * len(class_names or ("",))
    images = np.random.default_rng(0).integers(0, 256, (count, *image_shape), dtype=np.uint8)
    if class_names is None:
        return Judge(ImageSet(images))
    return Judge(ImageSet(images, np.arange(count) % len(class_names), class_names), epochs=0)


def noise_p_values(answers: Sequence[Gradients], std: float) -> dict[str, float]:
    """p-values of independent `N(0, std^2)` draws: standard deviation of each tensor; correlation of neighbours in it,
    along each of its axes (the taps of a kernel are two of them) and from answer to answer; correlation of a tensor
    and the next.

    Args:
        answers (`Sequence[dict[str, torch.Tensor]]`): Noise alone, the same shapes in each.
        std (`float`): That each number should have.
    """
    found: dict[str, float] = {}
    tensors = {name: torch.stack([answer[name] for answer in answers]).double().cpu().numpy() for name in answers[0]}
    for name, values in tensors.items():
        found[f"standard deviation of {name}"] = _number(std_check(name, values, std).p_value)
        values = tensors[name] = values[:, : max(1, MOST_VALUES // values[0, :1].size)] if values.ndim > 1 else values
        for axis in range(values.ndim):
            first, second = (np.delete(values, end, axis) for end in (-1, 0))
            what = f"neighbours along axis {axis - 1} of" if axis else "answers,"
            found[f"correlation of {what} {name}"] = _p_value_of_correlation(first, second)
    for (name, one), (other_name, other) in pairwise(tensors.items()):
        one, other = (values.reshape(len(answers), -1) for values in (one, other))
        size = min(one.shape[1], other.shape[1])
        found[f"correlation of {name} and {other_name}"] = _p_value_of_correlation(one[:, :size], other[:, :size])
    return found


def _p_value_of_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Of Pearson's r, which follows a t distribution; 0 where one side is constant, 1 where there are too few
    numbers."""
    if first.size < FEWEST_VALUES:
        return 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.corrcoef(first.ravel(), second.ravel())[0, 1]
        statistic = abs(r) * np.sqrt((first.size - 2) / np.maximum(1 - r**2, 1e-30))
    return _number(2 * stats.t.sf(statistic, first.size - 2))


def _number(p_value: float | None) -> float:
    """What is no number is rejected."""
    return 0.0 if p_value is None or np.isnan(p_value) else float(p_value)


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
