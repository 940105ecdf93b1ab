# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What can be measured on the images that there are, before anything takes long: what a flag asks for and cannot be is
refused, and of what nobody asked for, the rest is measured, with a warning. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import UsageError
from .analyses import ANALYSES, NO_LABELS, NO_PROBABILITIES, Known, classifiers_need
from .flags import ALL, QUICK, MeasureFlags


@dataclass
class Choice:
    """What is measured.

    Args:
        extractors, metrics, classifiers (`list[str]`): Names, as flags have them.
        jobs (`list[tuple[str, str]]`): Analyses in the order of the report, each with its feature space, or with ""
            where it is measured once.
        warnings (`list[str]`): What was not asked for and is left out, one sentence each.
    """

    extractors: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    classifiers: list[str] = field(default_factory=list)
    jobs: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def measured(self) -> dict[str, list[str]]:
        """Names of what is measured, by flag."""
        return {"metrics": self.metrics, "extractors": self.extractors, "classifiers": self.classifiers}

    def leave_out(self, what: str, problem: str) -> None:
        # with_classes_of says so of all that need labels; nobody misses a score of pixels.
        if problem not in (NO_LABELS, NO_PROBABILITIES):
            self.warnings.append(f"Left out: {what}, which {problem}.")


def choose(flags: MeasureFlags, known: Known) -> Choice:
    """Chooses what flags ask for, or all that applies where they are unset.

    Raises:
        UsageError: A flag asks for what cannot be measured on these images.
    """
    choice, usual = Choice(), QUICK if flags.quick else ALL
    for name in flags.extractors or usual["extractors"]:
        problem = _unlearnable(known) if name == "classifier" else None
        if flags.extractors:
            _refuse(f"--extractors {name}", problem)
        if problem:
            choice.leave_out(f"features of {name}", problem)
        else:
            choice.extractors.append(name)
    metrics = flags.metrics or usual["metrics"]
    unfit = _unfit(flags, metrics, known, choice)
    choice.metrics = [name for name in metrics if any((name, each) not in unfit for each in choice.extractors)]
    problem = classifiers_need(known)
    for flag, asked in (
        ("--classifiers", flags.classifiers), ("--selection private", flags.selection == "private"),
        ("--model_selection", flags.model_selection), ("--reference", flags.reference and not flags.quick),
        ("--dp_reference", flags.dp_reference),
    ):  # fmt: skip
        _refuse(flag, problem if asked else None)
    if problem:
        choice.leave_out("utility", problem)
    else:
        choice.classifiers = list(flags.classifiers or usual["classifiers"])
    asked_for = {name: getattr(flags, name) for name in ("training_curve", "model_selection", "dp_reference")}
    asked_for["classifiers"] = not problem
    wanted = [*choice.metrics, *(name for name in ANALYSES if asked_for.get(name))]
    curve_needs = ANALYSES["training_curve"].needs(known, choice.extractors[0])
    _refuse("--training_curve", curve_needs if flags.training_curve else None)
    choice.jobs = [
        (name, extractor) for extractor in choice.extractors for name in wanted
        if ANALYSES[name].by_features and (name, extractor) not in unfit
    ]  # fmt: skip
    choice.jobs += [(name, "") for name in ANALYSES if name in wanted and not ANALYSES[name].by_features]
    return choice


def _unfit(flags: MeasureFlags, metrics: Sequence[str], known: Known, choice: Choice) -> set[tuple[str, str]]:
    """Pairs of a metric and a feature space that do not go together."""
    problems = {
        (metric, extractor): ANALYSES[metric].needs(known, extractor)
        for metric in metrics for extractor in choice.extractors
    }  # fmt: skip
    for (metric, extractor), problem in problems.items():
        nowhere = all(problems[metric, each] for each in choice.extractors)
        if flags.metrics and (flags.extractors or nowhere):
            _refuse(f"--metrics {metric} by features of {extractor}", problem)
        if problem:
            choice.leave_out(f"{metric} by features of {extractor}", problem)
    return {pair for pair, problem in problems.items() if problem}


def _unlearnable(known: Known) -> str | None:
    """What a classifier of the real images lacks, as the end of a sentence."""
    labels = None if known.real is None else known.real.labels
    if not known.labelled:
        return NO_LABELS
    if labels is not None and len(np.unique(labels)) < 2:
        return "needs real training images of two classes at least"
    return None


def _refuse(flag: str, problem: str | None) -> None:
    if problem:
        raise UsageError(f"{flag} {problem}, or leave it out.")
