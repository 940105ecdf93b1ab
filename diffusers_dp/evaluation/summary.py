# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The summary of a report in sentences. No torch."""

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
    name = best.protocol["classifier"]
    lines = [
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
