# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`report.html`: a self-contained page without network access or scripts."""

from collections.abc import Sequence
from typing import Any

from ..files.templates import render
from .analyses import ANALYSES, BETTER
from .measurement import Measurement, number, protocol_words
from .pictures import build_charts, sample_picture
from .report import Evaluation
from .summary import summary


PAID_FOR = "In the receipt: one noisy answer of the training images, paid for and covered by the guarantee"
#: Protocol fields that a chart or a number's name already shows, or that readers of a page do not need.
LEFT_TO_JSON = {"weights_sha256", "num_train", "num_validation", "trained_on"}


def report_page(evaluation: Evaluation) -> str:
    """Builds the page. Everything but the charts is escaped because names of classes and data sets are external."""
    paid_for = [Measurement(**each) for each in (evaluation.release or {}).get("paid_for", [])]
    groups: dict[str, list[Measurement]] = {PAID_FOR: paid_for} if paid_for else {}
    for each in evaluation.measurements:
        groups.setdefault(ANALYSES[each.analysis].heading.format(**each.protocol), []).append(each)
    return render(
        "report.html", filters={"number": number, "name": _name}, evaluation=evaluation, facts=evaluation.as_json(),
        summary=summary(evaluation), charts=build_charts(evaluation),
        samples=sample_picture(evaluation.image_sets["synthetic"]),
        groups=[(title, *_rows(found)) for title, found in groups.items()],
        origins={name: _words(images.origin) for name, images in evaluation.image_sets.items()},
    )  # fmt: skip


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
