# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The summary of a report in sentences. No torch."""

from ..methods.advice import word_of
from .measurement import WITH_DP, Measurement
from .report import Evaluation


def summary(evaluation: Evaluation) -> list[str]:
    """Compares a classifier trained on synthetic images with those trained on real ones, and names its worst class.

    Args:
        evaluation (`Evaluation`): Results.

    Returns:
        `list[str]`: Sentences; empty if no classifier was trained.
    """
    best = _best(evaluation, "synthetic")
    if best is None:
        return []
    name, real = best.protocol["classifier"], _best(evaluation, "real")
    lines = [] if real is None else [_verdict(best.value, real.value, _chance(evaluation, name))]
    lines += [
        f"The best classifier that saw synthetic images only ({name}) takes {_value(best)} of the real test images "
        "for what they are."
    ]
    for kind, words in (
        ("real", "trained on the real images"),
        (WITH_DP, "trained on them with DP-SGD at the same epsilon"),
    ):
        other = _best(evaluation, kind)
        if other is not None:
            lines.append(f"The best one {words} ({other.protocol['classifier']}): {_value(other)}.")
    for worst in evaluation.rates(name)[:1]:
        lines.append(f"It serves the class {worst['class']} worst: {number(100 * worst['accuracy'], '%')}.")
    return lines


def _verdict(drawn: float, real: float, chance: float) -> str:
    """In the words of `recommend`."""
    has = {"guessing has": chance, "synthetic images": drawn, "real ones": real}
    beside = ", ".join(f"{who} {number(accuracy, '%')}" for who, accuracy in has.items())
    if real <= chance:
        return f"No verdict, because the real images teach no more than guessing: {beside}."
    skill = min(1.0, max(0.0, (drawn - chance) / (real - chance)))
    taught = f"Synthetic images teach {number(100 * skill, '%')} of what real ones teach"
    return f"Verdict: {word_of(skill)}. {taught}: {beside}."


def _chance(evaluation: Evaluation, classifier: str) -> float:
    """Accuracy in % of one who always guesses the commonest class of the test images."""
    of_classes = [sum(counts) for counts in evaluation.confusion[classifier]]
    return 100 * max(of_classes) / sum(of_classes)


def _best(evaluation: Evaluation, trained_on: str) -> Measurement | None:
    """Finds the highest accuracy over all classes on the real test images."""
    found = [
        each
        for each in evaluation.measurements
        if each.metric == "accuracy"
        and each.protocol.get("trained_on") == trained_on
        and each.protocol.get("tested_on") == "real"
        and "class" not in each.protocol
    ]
    return max(found, key=lambda each: each.value, default=None)


def _value(found: Measurement) -> str:
    return number(found.value, found.protocol.get("unit", ""))


def number(value: float | None, unit: str = "", digits: int = 4) -> str:
    """Formats a number for reading; `unit` is `%` for per cent."""
    if value is None:
        return "–"
    if unit == "%":
        return f"{value:.1f} %" if digits > 2 else f"{value:.1f}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
