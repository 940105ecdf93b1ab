# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which method suits declared facts, judged by measured rows alone. No torch, and no image is read.

`evidence.json` has the rows; `python benchmarks/rows.py docs` writes it. The noise on the mean of a class is in
proportion to 1 / (epsilon n), with n units in the class. So facts and rows are compared by epsilon n, their signal,
on the data set whose images have the nearest number of values (grey ones are not taken for colour).
"""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from .flag import MOST


#: Least skill of each word: the share of what real images teach a classifier, beyond chance, that drawn ones teach.
WORDS = {"good": 0.85, "fair": 0.6, "poor": 0.3, "hopeless": 0.0}
#: Signals and numbers of values beyond these factors of every row are far from what was measured.
FAR_SIGNAL, FAR_VALUES = 3.0, 4.0
#: About as many images as the largest data sets of rows have.
MANY = 50_000
#: What to try where nothing will do: multiples of the number of units, epsilons, and parts of the number of classes.
MULTIPLES = (2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)
EPSILONS, PARTS = (1.0, 2.0, 5.0, 10.0), (2, 5, 10, 50)


@dataclass(frozen=True)
class Situation:
    """What is declared of images and budget.

    Args:
        epsilon (`float`): Total epsilon.
        num_units (`int`): N, the number of images, or of units of several.
        num_classes (`int`): 1 without classes. Classes are taken to be of one size.
        image_shape (`tuple[int, int, int]`): (C, H, W).
    """

    epsilon: float
    num_units: int
    num_classes: int
    image_shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """Values of an image."""
        return math.prod(self.image_shape)

    @property
    def signal(self) -> float:
        """epsilon times the units of a class."""
        return self.epsilon * self.num_units / self.num_classes


@dataclass(frozen=True)
class MeasuredRow(Situation):
    """A case of the benchmarks, the mean over its seeds.

    Args:
        case (`str`), method (`str`), recipe (`str`): As in `benchmarks/cases.yaml`.
        flags (`tuple[str, ...]`): Further flags that say nothing of the data.
        needs (`tuple[str, ...]`): Flags of public images or models that it has.
        data (`str`): Name of the data set. What comes before `_` names the whole that it is a part of.
        seeds (`int`): Number of runs.
        accuracy (`float`), accuracy_of_real (`float`): Share of real test images that a CNN gets right that learned
            drawn images, with the soft labels of a judge where there are some, or real ones.
        minutes (`float`): Processor time of training and drawing.
    """

    case: str
    method: str
    recipe: str
    flags: tuple[str, ...]
    needs: tuple[str, ...]
    data: str
    seeds: int
    accuracy: float
    accuracy_of_real: float
    minutes: float

    @property
    def images(self) -> str:
        """Name of the whole data set."""
        return self.data.partition("_")[0]

    @cached_property
    def skill(self) -> float:
        """Share of what real images teach a CNN, beyond chance, that drawn ones teach."""
        chance = 1 / self.num_classes
        return min(1.0, max(0.0, (self.accuracy - chance) / (self.accuracy_of_real - chance)))


@dataclass(frozen=True)
class Advice:
    """What a method is expected to do.

    Args:
        row (`MeasuredRow`): The method's nearest row that no row with less signal beats. Its settings are taken.
        skill (`float`): See `MeasuredRow.skill`.
        minutes (`float`): Minutes of one core.
        images (`str`): Data set whose images are nearest; the row may be of others.
    """

    row: MeasuredRow
    skill: float
    minutes: float
    images: str

    @property
    def word(self) -> str:
        return word_of(self.skill)


def word_of(skill: float) -> str:
    return next(word for word, least in WORDS.items() if skill >= least)


def read_evidence() -> list[MeasuredRow]:
    """The rows that come with the package."""
    found: list[dict[str, Any]] = json.loads(files(__package__).joinpath("evidence.json").read_text(encoding="utf-8"))
    for each in found:
        each |= {name: tuple(value) for name, value in each.items() if isinstance(value, list)}
    return [MeasuredRow(**each) for each in found]


def rank(rows: Sequence[MeasuredRow], facts: Situation, given: Collection[str], cap: float = math.inf) -> list[Advice]:
    """
    Expected results of each method, the best first; of ones that are equal to two digits, the quicker first.

    Args:
        rows (`list[MeasuredRow]`): What was measured.
        facts (`Situation`): What is declared.
        given (`Collection[str]`): Flags of public images and models that are there.
        cap (`float`): Minutes. Settings of a method that take more are left out where others do not.
    """
    usable = [row for row in rows if set(row.needs) <= set(given)]
    if facts.num_classes < 2:  # then a run refuses a judge
        usable = [row for row in usable if not any("judge" in flag for flag in row.flags)]
    sources = sorted({row.images: row for row in usable}.values(), key=lambda row: _apart(row, facts))
    names = [row.images for row in sources]
    found = []
    for method in sorted({row.method for row in usable}):
        own = [row for row in usable if row.method == method]
        source = next(name for name in names if any(row.images == name for row in own))
        whole = [row for row in own if row.images == source]
        on_source = [row for row in whole if minutes_of(row, facts) <= cap] or whole
        near = max(facts.signal, min(row.signal for row in on_source))  # below it all rows say how skill falls
        skill = skill_at(on_source, near) * skill_at(whole, facts.signal) / max(skill_at(whole, near), 1e-9)
        if source != names[0]:  # of other images: what the two make of methods that were measured on both
            ratio = _ratio(usable, names[0], source, facts.signal)
            if ratio is None:
                continue
            skill *= ratio
        # A row that one with less signal beats has poorer settings than those with the expected skill.
        unbeaten = [row for row in on_source if round(row.skill, 2) >= max(
            round(other.skill, 2) for other in on_source if other.signal <= row.signal)]  # fmt: skip
        nearest = min(unbeaten, key=lambda row: _order(row, facts.signal))
        found.append(Advice(nearest, skill, minutes_of(nearest, facts), names[0]))
    return sorted(found, key=lambda each: (-round(each.skill, 2), each.minutes))


def _order(row: MeasuredRow, signal: float) -> tuple[float, float, int]:
    """Rows of the nearest signal first, then the best; of equally good ones that with fewest flags, such as one
    without a judge, whose hard labels are better."""
    return abs(math.log(row.signal / signal)), -round(row.skill, 2), len(row.flags)


def skill_at(rows: Sequence[MeasuredRow], signal: float) -> float:
    """Skill of a method by its rows of one data set: more signal never does worse. Between rows it is linear in the
    logarithm of the signal, above them that of the best, and below them in proportion to the signal, as noise is to
    its inverse. Private Evolution has public images, and noise is in their choice alone: its skill falls with the root
    of the signal. Other methods with public images or models fall as all do."""
    best: dict[float, float] = {}
    for row in sorted(rows, key=lambda row: row.signal):
        best[row.signal] = max(row.skill, best.get(row.signal, 0.0))
    signals, skills = list(best), np.maximum.accumulate(list(best.values()))
    if signal < signals[0]:
        return float(skills[0] * (signal / signals[0]) ** (0.5 if rows[0].method == "pe" else 1.0))
    return float(np.interp(math.log(signal), np.log(signals), skills))


def minutes_of(row: MeasuredRow, facts: Situation) -> float:
    """Minutes of one core: those of the row, and in proportion to values and classes where these are more. Minutes
    grow with the root of the number of images up to `MANY`, as those of rows do, and in proportion to it above."""
    images = math.sqrt(max(1.0, min(facts.num_units, MANY) / row.num_units))
    images *= max(1.0, facts.num_units / max(MANY, row.num_units))
    more = max(images, facts.num_classes / row.num_classes)
    return row.minutes * max(1.0, facts.num_values / row.num_values) * more


def far_from(rows: Sequence[MeasuredRow], facts: Situation) -> list[str]:
    """In which respects the facts are far from all rows of the data set that is nearest to them."""
    source = min(rows, key=lambda row: _apart(row, facts)).images
    near, found = [row for row in rows if row.images == source], []
    signals, values = [row.signal for row in near], near[0].num_values
    if not min(signals) / FAR_SIGNAL <= facts.signal <= max(signals) * FAR_SIGNAL:
        found.append(
            f"signal {in_digits(facts.signal)}, rows have {in_digits(min(signals))} to {in_digits(max(signals))}"
        )
    if not 1 / FAR_VALUES <= facts.num_values / values <= FAR_VALUES:
        found.append(f"{facts.num_values:,} values an image, rows of {source} have {values:,}")
    return found


def in_digits(number: float) -> str:
    """A number for a person: whole where it is large."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def what_would(rows: Sequence[MeasuredRow], facts: Situation, given: Collection[str]) -> tuple[str, list[str]]:
    """The best word, fair or poor, that a change brings, and the least change of each kind that brings it."""
    classes = dict.fromkeys(number for part in PARTS if 1 < (number := facts.num_classes // part))
    more = [
        (f"{n:,} images", replace(facts, num_units=n)) for each in MULTIPLES if (n := facts.num_units * each) <= MOST
    ]
    weakest = EPSILONS[-1]
    kinds = [
        [(f"epsilon {each:g}", replace(facts, epsilon=each)) for each in EPSILONS if each > facts.epsilon],
        [(f"the {facts.num_classes} classes merged into {n}", replace(facts, num_classes=n)) for n in classes],
        more,
        [(f"{name} and epsilon {weakest:g}", replace(each, epsilon=weakest)) for name, each in more
         if facts.epsilon < weakest],
    ]  # fmt: skip
    needs = sorted({need for row in rows for need in row.needs} - set(given))
    for word in ("fair", "poor"):
        found = [next((text for text, changed in kind if _best(rank(rows, changed, given)) >= WORDS[word]), None)
                 for kind in kinds]  # fmt: skip
        found += [f"--{need}" for need in needs if _best(rank(rows, facts, {*given, need})) >= WORDS[word]]
        if any(found):
            return word, [text for text in found if text is not None]
    return "poor", []


def _best(ranked: Sequence[Advice]) -> float:
    return ranked[0].skill if ranked else 0.0


def _apart(row: MeasuredRow, facts: Situation) -> tuple[bool, float]:
    """Order of data sets: grey ones say little of colour, and then the number of values counts."""
    return row.image_shape[0] < facts.image_shape[0], abs(math.log(row.num_values / facts.num_values))


def _ratio(rows: Sequence[MeasuredRow], images: str, others: str, signal: float) -> float | None:
    """Skill on some images by that on others, the mean over methods that were measured on both; `None`: none was."""
    ratios = []
    for method in {row.method for row in rows}:
        here, there = (
            [row for row in rows if (row.method, row.images) == (method, name)] for name in (images, others)
        )
        if here and there:
            ratios.append(min(1.0, skill_at(here, signal) / max(skill_at(there, signal), 1e-9)))
    return sum(ratios) / len(ratios) if ratios else None
