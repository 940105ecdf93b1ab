# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The summary of a report in sentences. No torch."""

from ..methods.advice import word_of
from .measurement import OF_HALVES, WITH_DP, Measurement
from .report import Evaluation


LEAST_SPAN = 32  # greys of 256, from the darkest to the brightest pixel of an image that shows something
MOST_BLANK = 0.9  # share of images that show nothing


def summary(evaluation: Evaluation) -> list[str]:
    """Compares a classifier trained on synthetic images with those trained on real ones, and names its worst class,
    after the verdict.

    Args:
        evaluation (`Evaluation`): Results.

    Returns:
        `list[str]`: Sentences; empty if nothing of that was measured.
    """
    best, lines = _best(evaluation, "synthetic"), verdict(evaluation)
    if best is None:
        return lines
    name = best.protocol["classifier"]
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


def verdict(evaluation: Evaluation) -> list[str]:
    """Says, apart, what the synthetic images are worth for training a classifier, and how like real ones they are.

    Returns:
        `list[str]`: Sentences; empty if neither was measured.
    """
    blank = _blank(evaluation)
    if blank is not None:
        return [blank]
    drawn, real = _best(evaluation, "synthetic"), _best(evaluation, "real")
    if drawn is None or real is None:
        return _likeness(evaluation)
    chance = _chance(evaluation, drawn.protocol["classifier"])
    return [_verdict(drawn.value, real.value, chance), *_likeness(evaluation)]


def _verdict(drawn: float, real: float, chance: float) -> str:
    """In the words of `recommend`."""
    has = {"guessing has": chance, "synthetic images": drawn, "real ones": real}
    beside = ", ".join(f"{who} {number(accuracy, '%')}" for who, accuracy in has.items())
    if real <= chance:
        return f"No verdict, because the real images teach no more than guessing: {beside}."
    skill = min(1.0, max(0.0, (drawn - chance) / (real - chance)))
    taught = f"Synthetic images teach {number(100 * skill, '%')} of what real ones teach"
    return f"Verdict: {word_of(skill)} for training a classifier. {taught}: {beside}."


def _likeness(evaluation: Evaluation) -> list[str]:
    """How far the distributions are apart, beside how far two samples of one are."""
    return [
        f"Likeness: {each.metric} {number(each.value)} between synthetic and real images, "
        f"{number(each.protocol[OF_HALVES])} between two halves of the real ones."
        for each in evaluation.measurements
        if OF_HALVES in each.protocol
    ]


def _blank(evaluation: Evaluation) -> str | None:
    """Why nothing can be said of images that are nearly all black, or of one grey: both sets may be, and look alike.
    Values of 12 bits that are read as 16 span a sixteenth of the greys."""
    for name, found in evaluation.image_sets.items():
        spans = found.images.max(axis=(1, 2, 3), initial=0) - found.images.min(axis=(1, 2, 3), initial=255)
        share = float((spans < LEAST_SPAN).mean()) if len(found) else 0.0
        if share > MOST_BLANK:
            return (
                f"No verdict, because {number(100 * share, '%')} of the {name} images are nearly of one grey: "
                "`diffusers-dp data` says what their files hold, and --value_range declares it."
            )
    return None


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
