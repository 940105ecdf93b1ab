# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`report.html`: a self-contained page without network access or scripts."""

from collections.abc import Sequence
from typing import Any

from ..files.templates import render
from .analyses import ANALYSES, BETTER
from .measurement import Measurement, number, protocol_words
from .pictures import build_charts, build_samples
from .report import Evaluation
from .summary import summary


#: Protocol fields that a chart or a number's name already shows, or that readers of a page do not need.
LEFT_TO_JSON = {
    "models", "accuracy_on_synthetic", "accuracy_on_real", "state", "dp_sgd_step", "weights_sha256", "num_train",
    "num_validation", "trained_on",
}  # fmt: skip


def report_page(evaluation: Evaluation) -> str:
    """Builds the page. Everything but the charts is escaped because names of classes and data sets are external."""
    paid_for = [Measurement(**each) for each in (evaluation.release or {}).get("paid_for", [])]
    groups: dict[str, list[Measurement]] = {}
    if paid_for:
        groups["In the receipt: one noisy answer of the training images, paid for and covered by the guarantee"] = (
            paid_for
        )
    for each in evaluation.measurements:
        if "class" not in each.protocol:  # those of single classes are only in the charts and in `report.json`
            groups.setdefault(ANALYSES[each.analysis].heading.format(**each.protocol), []).append(each)
    return render(
        "report.html",
        evaluation=evaluation,
        facts=evaluation.as_json(),
        summary=summary(evaluation),
        groups=[_group(title, measurements) for title, measurements in groups.items()],
        charts=build_charts(evaluation),
        samples=build_samples(evaluation),
        origins={
            name: protocol_words({key: value for key, value in images.origin.items() if key != "num_images"})
            for name, images in evaluation.image_sets.items()
        },
    )


def _group(title: str, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Returns numbers with the common part of their protocol, which is printed once."""
    protocols = [_for_readers(each.protocol) for each in measurements]
    shared = {
        key: value for key, value in protocols[0].items() if all(each.get(key, ...) == value for each in protocols)
    }
    rows = [
        {
            "metric": _name(each), "value": number(each.value, each.unit),
            "spread": "" if each.standard_error is None else f"± {number(each.standard_error, each.unit, digits=2)}",
            "protocol": protocol_words({key: value for key, value in own.items() if key not in shared}),
        }
        for each, own in zip(measurements, protocols, strict=True)
    ]  # fmt: skip
    return {"title": title, "shared": protocol_words(shared), "rows": rows}


def _for_readers(protocol: dict[str, Any]) -> dict[str, Any]:
    """Leaves out fields that readers do not need, at any depth."""
    return {
        key: _for_readers(value) if isinstance(value, dict) else value
        for key, value in protocol.items()
        if key not in LEFT_TO_JSON
    }


def _name(found: Measurement) -> str:
    facts, better = found.protocol, BETTER.get(found.metric.split(" (")[0])
    name = found.metric.replace("_", " ") + (f" ({better})" if better else "")
    extra = facts.get("features") if found.analysis == "complexity" else facts.get("state")
    name += f", {extra}" if extra else ""
    if {"num_train", "trained_on"} <= facts.keys():
        held_out = facts.get("num_validation") or 0
        name += f", trained on {facts['num_train'] + held_out:,} images ({facts['trained_on']})"
        name += f", {held_out:,} of which choose the epoch" if held_out else ""
    return name
