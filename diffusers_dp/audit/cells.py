# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The noise of every way to ask the door: images or units, for a step, a query and the question about a
finished model.

No record can be read, so that an answer is its noise, from the real generator. A fault in one branch of the code shows
in one cell only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy import stats

from ..accounting.ledger_row import LedgerRow
from ..evaluation.charged import Judge
from ..evaluation.images import ImageSet
from ..gradients.step import Gradients
from ..mechanisms import Banded, Everyone, sampled
from ..privacy.sensitive import SensitiveImages
from ..randomness.keyed_hash import digests_of
from .bands import whitened
from .checks import Check, random_check, std_check
from .mechanism import STAND_IN_SHAPE, Audited, AuditedModel, audited_door, counting_ledger, labels_of


NUM_RECORDS = 4
QUERY_VALUES = 1000  # of each class
ASKS = 4
MOST_VALUES = 200_000  # of a parameter: `parameter_noise_checks` looks at all of them
FEWEST_VALUES = 30  # whose correlation says something
STAND_IN_CLASSES = ("a", "b", "c")


@dataclass(frozen=True)
class Cell:
    """One way to ask. Whole numbers are of images alone.

    Args:
        units (`bool`): Whether units have several images.
        exact (`bool`): `--noise exact`.
    """

    units: bool = False
    exact: bool = False

    @property
    def name(self) -> str:
        return ("units" if self.units else "images") + ", exact" * self.exact


CELLS = (Cell(), Cell(units=True), Cell(exact=True))


def cell_of(step: Audited) -> Cell:
    """A run's own."""
    return Cell(step.mechanism.max_images_per_unit is not None, step.mechanism.exact)


def cell_checks(step: Audited, audited: AuditedModel, cells: Sequence[Cell]) -> list[Check]:
    """Standard deviation and whiteness over all questions in these cells: of each the worst p-value, corrected for
    their number.

    Args:
        audited (`AuditedModel`): Whose parameters get the noise of a step.
    """
    found: dict[str, float] = {}
    for cell in cells:
        for words, answers, std in noise_of_cell(step, audited, cell):
            found |= {f"{name}, {words} ({cell.name})": p for name, p in noise_p_values(answers, std).items()}
    return [
        worst_check("noise at the door", {name: p for name, p in found.items() if name.startswith(kind)})
        for kind in ("standard deviation", "correlation")
    ]


def worst_check(prefix: str, p_values: dict[str, float]) -> Check:
    """The least of these p-values, corrected for their number (Bonferroni)."""
    worst = min(p_values, key=lambda name: p_values[name])
    p_value = min(1.0, p_values[worst] * len(p_values))
    return random_check(f"{prefix}: {worst}: p-value", p_values[worst], 1.0, p_value)


def noise_of_cell(step: Audited, audited: AuditedModel, cell: Cell) -> Iterator[tuple[str, list[Gradients], float]]:
    """Each question's name, its answers, and the standard deviation that they should have."""
    sigma, clip_norm, mechanism = step.noise_multiplier, step.max_grad_norm, step.mechanism
    door = blank_door(audited.image_shape, audited.class_names, cell, audited.device)
    half = mechanism.at(rate=0.5 / mechanism.num_groups) if mechanism.num_groups > 1 else sampled(0.5, sigma)
    question = step.question(NUM_RECORDS) | {
        "mechanism": half, "noise_multiplicity": min(step.noise_multiplicity, 2), "reserve_steps": ASKS,
    }  # fmt: skip
    answers = [_part(door.noisy_gradient(audited.model, audited.row_loss, **question)) for _ in range(ASKS)]
    if isinstance(mechanism, Banded):
        answers = _whitened(answers, mechanism)
    yield "a step", answers, sigma * clip_norm / step.normaliser
    door = blank_door(STAND_IN_SHAPE, STAND_IN_CLASSES, cell)
    answer = door.noisy_sum(
        lambda x, _: x.new_zeros(len(x), QUERY_VALUES), sampled(0.5, sigma, by_label=True), clip_norm=clip_norm,
        name="query", repeats=ASKS,
    )  # fmt: skip
    yield "a query", [{"classes and values": each} for each in answer], sigma * clip_norm
    judge = untrained_judge(STAND_IN_SHAPE, STAND_IN_CLASSES)
    row = LedgerRow("evaluation_reserve", Everyone(noise_multiplier=sigma))
    asked = [{"classes and values": judge.ask(door, row)} for _ in range(ASKS)]
    yield "the question about a finished model", asked, sigma * judge.query.clip_norm


def _whitened(answers: list[Gradients], bands: Banded) -> list[Gradients]:
    """Correlated noise as what it is made of."""
    white = {name: whitened(torch.stack([answer[name] for answer in answers]), bands) for name in answers[0]}
    return [{name: values[number] for name, values in white.items()} for number in range(len(answers))]


def _part(answer: Gradients) -> Gradients:
    """The first rows of large parameters."""
    return {
        name: (g[: max(1, MOST_VALUES // g[0].numel())] if g.dim() else g.view(1)).clone()
        for name, g in answer.items()
    }


def blank_door(
    image_shape: tuple[int, ...],
    class_names: tuple[str, ...] | None,
    cell: Cell,
    device: torch.device | str = "cpu",
) -> SensitiveImages:
    """To records of which none can be read."""
    numbers = np.arange(NUM_RECORDS)
    return audited_door(
        np.zeros((NUM_RECORDS, *image_shape), dtype=np.uint8), labels_of(class_names, numbers), numbers < 0,
        ledger=counting_ledger(NUM_RECORDS, 1e-5), class_names=class_names, device=device, exact=cell.exact,
        units=numbers if cell.units else None, ids=digests_of(numbers.tolist()) if cell.units else None,
    )  # fmt: skip


def untrained_judge(image_shape: tuple[int, ...], class_names: tuple[str, ...] | None) -> Judge:
    """The question about a finished model, about images of noise; its classifier has learnt nothing, for only the sum
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
