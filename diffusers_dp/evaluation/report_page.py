# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`report.html`: a self-contained page without network access or scripts, and the summary of a report in sentences."""

from collections.abc import Sequence
from typing import Any

import torch

from ..files.templates import data_uri, render
from ..methods.advice import word_of
from ..release.artefacts import DatasetArtefact
from ..release.image_tables import to_png
from .analyses import ANALYSES, BETTER
from .images import ImageSet
from .measurement import OF_HALVES, Measurement, number, protocol_words
from .report import Evaluation, class_rates


PAID_FOR = "In the receipt: one noisy answer of the training images, paid for and covered by the guarantee"
#: Protocol fields that a chart or a number's name already shows, or that readers of a page do not need.
LEFT_TO_JSON = {"weights_sha256", "num_train", "num_validation", "trained_on"}


def report_page(evaluation: Evaluation) -> str:
    """Builds the page. Everything is escaped because names of classes and data sets are external."""
    paid_for = [Measurement(**each) for each in (evaluation.release or {}).get("paid_for", [])]
    groups: dict[str, list[Measurement]] = {PAID_FOR: paid_for} if paid_for else {}
    for each in evaluation.measurements:
        groups.setdefault(ANALYSES[each.analysis].heading.format(**each.protocol), []).append(each)
    return render(
        "report.html", filters={"number": number, "name": _name}, evaluation=evaluation, facts=evaluation.as_json(),
        summary=summary(evaluation), samples=sample_picture(evaluation.image_sets["synthetic"]),
        groups=[(title, *_rows(found)) for title, found in groups.items()],
        origins={name: _words(images.origin) for name, images in evaluation.image_sets.items()},
    )  # fmt: skip


def sample_picture(synthetic: ImageSet) -> str:
    """Draws the first images of each class, or of all without labels, as the `data:` URI of a PNG."""
    labels = None if synthetic.labels is None else torch.from_numpy(synthetic.labels)
    grid = DatasetArtefact(torch.from_numpy(synthetic.images), labels, synthetic.class_names).sample_grid()
    return data_uri(to_png(grid), "image/png")


def _rows(measurements: Sequence[Measurement]) -> tuple[str, list[tuple[Measurement, str]]]:
    """Returns the common part of the protocols, which is printed once, and each number with the rest of its own."""
    first, *others = (each.protocol for each in measurements)
    shared = {key: value for key, value in first.items() if all(each.get(key, ...) == value for each in others)}
    rest = [{key: value for key, value in each.protocol.items() if key not in shared} for each in measurements]
    return _words(shared), list(zip(measurements, map(_words, rest), strict=True))


def _words(protocol: dict[str, Any]) -> str:
    return protocol_words(protocol, without=LEFT_TO_JSON)


def _name(found: Measurement) -> str:
    facts, better = found.protocol, BETTER.get(found.metric.split(" (")[0])
    name = found.metric.replace("_", " ") + (f" ({better})" if better else "")
    if {"num_train", "trained_on"} <= facts.keys():
        held_out = facts.get("num_validation") or 0
        name += f", trained on {facts['num_train'] + held_out:,} images ({facts['trained_on']})"
        chooses = held_out and facts.get("selection") != "validation"
        name += f", {held_out:,} of which choose the epoch" if chooses else ""
    return name


LEAST_SPAN = 32  # greys of 256, from the darkest to the brightest pixel of an image that shows something
MOST_BLANK = 0.9  # share of images that show nothing


def summary(evaluation: Evaluation) -> list[str]:
    """Returns the verdict, the accuracy of the best classifier trained on synthetic images, and its worst class, in
    sentences."""
    best, lines = _best(evaluation, "synthetic"), verdict(evaluation)
    if best is None:
        return lines
    name = best.protocol["classifier"]
    lines.append(
        f"The best classifier that saw synthetic images only ({name}) takes {number(best.value, best.unit)} of the "
        "real test images for what they are."
    )
    rates = class_rates(evaluation.confusion[name], evaluation.class_names)
    worst = min((row for row in rates if row["accuracy"] is not None), key=lambda row: row["accuracy"])
    lines.append(f"It serves the class {worst['class']} worst: {number(100 * worst['accuracy'], '%')}.")
    return lines


def verdict(evaluation: Evaluation) -> list[str]:
    """Says, apart, what the synthetic images are worth for training a classifier, in the words of `recommend`, and how
    like real ones they are.

    Returns:
        `list[str]`: Sentences; empty if neither was measured.
    """
    blank = _blank(evaluation)
    if blank is not None:
        return [blank]
    likeness = [
        f"Likeness: {each.metric} {number(each.value)} between synthetic and real images, "
        f"{number(each.protocol[OF_HALVES])} between two halves of the real ones."
        for each in evaluation.measurements
        if OF_HALVES in each.protocol
    ]
    drawn, real = _best(evaluation, "synthetic"), _best(evaluation, "real")
    if drawn is None or real is None:
        return likeness
    of_classes = [sum(counts) for counts in evaluation.confusion[drawn.protocol["classifier"]]]
    chance = 100 * max(of_classes) / sum(of_classes)  # in %, of one who always guesses the commonest class
    beside = (
        f"guessing has {number(chance, '%')}, synthetic images {number(drawn.value, '%')}, "
        f"real ones {number(real.value, '%')}"
    )
    if real.value <= chance:
        return [f"No verdict, because the real images teach no more than guessing: {beside}.", *likeness]
    skill = min(1.0, max(0.0, (drawn.value - chance) / (real.value - chance)))
    taught = f"Synthetic images teach {number(100 * skill, '%')} of what real ones teach"
    return [f"Verdict: {word_of(skill)} for training a classifier. {taught}: {beside}.", *likeness]


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
