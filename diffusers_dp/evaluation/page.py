# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`report.html`: a self-contained page without network access or scripts."""

from importlib.resources import files
from typing import Any

from .analyses import ANALYSES, BETTER
from .measurement import Measurement, protocol_words
from .pictures import Chart, Strip
from .report import Evaluation
from .summary import number, summary


#: Protocol fields that a chart or a number's name already shows, or that readers of a page do not need.
LEFT_TO_JSON = {"models", "accuracy_on_synthetic", "accuracy_on_real", "state", "dp_sgd_step", "weights_sha256"}


def report_page(
    evaluation: Evaluation, charts: list[Chart], samples: list[Strip], neighbours: list[tuple[Strip, Strip]]
) -> str:
    """Builds the page. Everything but the charts is escaped because names of classes and data sets are external.

    Args:
        evaluation (`Evaluation`): Results.
        charts (`list[Chart]`): Charts in the order of the page.
        samples (`list[Strip]`): Synthetic images, a strip for each class.
        neighbours (`list[tuple[Strip, Strip]]`): Synthetic images and the **real** images nearest to each; empty
            unless requested.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("diffusers_dp").joinpath("templates", "report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        evaluation=evaluation,
        facts=evaluation.as_json(),
        summary=summary(evaluation),
        groups=_paid_for(evaluation) + _groups(evaluation.measurements),
        charts=charts,
        samples=samples,
        neighbours=neighbours,
        origins={
            name: protocol_words({key: value for key, value in images.origin.items() if key != "num_images"})
            for name, images in evaluation.image_sets.items()
        },
    )


def _paid_for(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Groups the numbers in the receipt, which the guarantee covers."""
    found = [Measurement(**each) for each in (evaluation.release or {}).get("paid_for", [])]
    title = "In the receipt: one noisy answer of the training images, paid for and covered by the guarantee"
    return [_group(title, found)] if found else []


def _groups(measurements: list[Measurement]) -> list[dict[str, Any]]:
    """Groups numbers by subject; those of single classes are only in the chart and in `report.json`."""
    found: dict[str, list[Measurement]] = {}
    for each in measurements:
        if "class" not in each.protocol:
            found.setdefault(ANALYSES[each.analysis].heading.format(**each.protocol), []).append(each)
    return [_group(title, group) for title, group in found.items()]


def _group(title: str, measurements: list[Measurement]) -> dict[str, Any]:
    """Returns numbers with the common part of their protocol, which is printed once."""
    first = measurements[0].protocol
    names = [key for key in first if key not in LEFT_TO_JSON]
    shared = {
        key: first[key] for key in names if all(each.protocol.get(key, ...) == first[key] for each in measurements)
    }
    rows = []
    for each in measurements:
        own = {key: value for key, value in each.protocol.items() if key not in shared.keys() | LEFT_TO_JSON}
        unit, better = each.protocol.get("unit", ""), BETTER.get(each.metric.split(" (")[0])
        name = each.metric.replace("_", " ") + (f" ({better})" if better else "")
        extra = each.protocol.get("features") if each.analysis == "complexity" else each.protocol.get("state")
        name += f", {extra}" if extra else ""
        if {"num_train", "trained_on"} <= each.protocol.keys():
            held_out = each.protocol.get("num_validation") or 0
            name += f", trained on {each.protocol['num_train'] + held_out:,} images ({each.protocol['trained_on']})"
            name += f", {held_out:,} of which choose the epoch" if held_out else ""
        spread = "" if each.standard_error is None else f"± {number(each.standard_error, unit, digits=2)}"
        rows.append({"metric": name, "value": number(each.value, unit), "spread": spread, "protocol": _words(own)})
    return {"title": title, "shared": _words(shared), "rows": rows}


def _words(protocol: dict[str, Any]) -> str:
    """Formats a protocol without fields that readers do not need, at any depth."""
    within = {
        key: {name: part for name, part in value.items() if name not in LEFT_TO_JSON}
        if isinstance(value, dict)
        else value
        for key, value in protocol.items()
    }
    return protocol_words(within)
