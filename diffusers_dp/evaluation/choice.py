# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What can be measured on the images that there are, before anything takes long: what a flag asks for and cannot be is
refused, and of what nobody asked for, the rest is measured, with a warning. No torch."""

from dataclasses import dataclass, field

from ..errors import UsageError
from .analyses import ANALYSES, NO_LABELS, NO_PROBABILITIES, ONE_CLASS, AvailableImages
from .flags import ALL, QUICK, MeasureFlags


@dataclass
class MeasurementPlan:
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


def choose(flags: MeasureFlags, known: AvailableImages) -> MeasurementPlan:
    """Chooses what flags ask for, or all that applies where they are unset.

    Raises:
        UsageError: A flag asks for what cannot be measured on these images.
    """
    choice, usual = MeasurementPlan(), QUICK if flags.quick else ALL
    if (largest := max(flags.utility_sizes or (0,))) > known.synthetic:
        raise UsageError(
            f"--utility_sizes asks for {largest} of {known.synthetic} synthetic images; lower it, or give more images."
        )

    def fits(flag: str, asked: bool, words: str, problem: str | None) -> bool:
        if problem and asked:
            raise UsageError(f"{flag} {problem}, or leave it out.")
        # with_classes_of says so of all that need labels; nobody misses a score of pixels.
        if problem and problem not in (NO_LABELS, NO_PROBABILITIES):
            choice.warnings.append(f"Left out: {words}, which {problem}.")
        return not problem

    for name in flags.extractors or usual["extractors"]:
        problem = NO_LABELS if not known.labelled else ONE_CLASS if known.classes in (0, 1) else None
        problem = problem if name == "classifier" else None
        if fits(f"--extractors {name}", bool(flags.extractors), f"features of {name}", problem):
            choice.extractors.append(name)
    for name in flags.metrics or usual["metrics"]:
        problems = {space: ANALYSES[name].needs(known, space) for space in choice.extractors}
        asked = bool(flags.metrics) and (bool(flags.extractors) or all(problems.values()))
        words = {space: f"{name} by features of {space}" for space in problems}
        fit = [space for space in problems if fits(f"--metrics {words[space]}", asked, words[space], problems[space])]
        choice.metrics += [name] if fit else []
        choice.jobs += [(name, space) for space in fit]
    problem = ANALYSES["classifiers"].needs(known, "")
    fits("--selection validation", flags.selection == "validation", "utility", problem)
    fits("--reference", flags.reference and not flags.quick, "utility", problem)
    if fits("--classifiers", bool(flags.classifiers), "utility", problem):
        choice.classifiers = list(flags.classifiers or usual["classifiers"])
        choice.jobs.append(("classifiers", ""))
    places = [*choice.extractors, *ANALYSES]
    choice.jobs.sort(key=lambda job: places.index(job[1] or job[0]))
    return choice
