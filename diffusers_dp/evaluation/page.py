# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`report.html`: one page that needs nothing else, neither a network nor a script."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from .amendments import protocol_words
from .measurement import Measurement
from .report import Evaluation
from .summary import number, summary


#: What a chart or the name of a number shows already, or nobody reads on a page.
LEFT_TO_JSON = {"models", "accuracy_on_synthetic", "accuracy_on_real", "state", "dp_sgd_step", "weights_sha256"}


@dataclass(frozen=True)
class Chart:
    """One picture of the page.

    Args:
        title (`str`): What it answers.
        svg (`str`): From `figures`: markup, not escaped.
        alt (`str`): The picture in words, for those who do not see it.
        caption (`str`): What has to be known to read it.
    """

    title: str
    svg: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Strip:
    """Images in one row: name, `data:` URI of a PNG, the picture in words, and how many images there are."""

    name: str
    uri: str
    alt: str
    count: int


#: By which names better numbers go up or down; of others neither is better.
LOWER_IS_BETTER = (
    "FID", "FD-DINOv2", "Fréchet distance", "KID", "kernel distance", "FLD", "feature likelihood divergence",
    "first moment distance", "second moment distance", "model selection: regret",
)  # fmt: skip
HIGHER_IS_BETTER = (
    "Inception Score", "score", "precision", "recall", "accuracy", "model selection: Spearman correlation",
    "model selection: top-1 agrees",
)  # fmt: skip


def build_page(
    evaluation: Evaluation, charts: list[Chart], samples: list[Strip], neighbours: list[tuple[Strip, Strip]]
) -> str:
    """The whole page. Everything but the charts is escaped: names of classes and of data sets come from outside.

    Args:
        evaluation (`Evaluation`): What was found.
        charts (`list[Chart]`): In the order of the page.
        samples (`list[Strip]`): Synthetic images, a strip for each class.
        neighbours (`list[tuple[Strip, Strip]]`): Synthetic images and the **real** ones nearest to each; empty unless
            asked for.
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


@dataclass(frozen=True)
class Group:
    """Numbers that share a part of their protocol, which is said once."""

    title: str
    shared: str
    rows: list[dict[str, str]]


def _paid_for(evaluation: Evaluation) -> list[Group]:
    """What the receipt says of the release, covered by its guarantee."""
    found = [Measurement(**each) for each in (evaluation.release or {}).get("paid_for", [])]
    title = "In the receipt: one noisy answer of the training images, paid for and covered by the guarantee"
    return [_group(title, found)] if found else []


def _groups(measurements: list[Measurement]) -> list[Group]:
    """Numbers by what they speak of; those of single classes are left to the chart and to `report.json`."""
    found: dict[str, list[Measurement]] = {}
    for each in measurements:
        if "class" not in each.protocol:
            found.setdefault(_title(each), []).append(each)
    return [_group(title, group) for title, group in found.items()]


def _title(measurement: Measurement) -> str:
    protocol = measurement.protocol
    if "state" in protocol:
        return f"Along the training: features of {protocol['extractor']}"
    if "extractor" in protocol:
        return f"Fidelity: features of {protocol['extractor']}"
    if "hypothetical" in protocol:
        return "Utility: a classifier trained on real images with DP-SGD"
    if "classifier" in protocol:
        return f"Utility: {protocol['classifier']}, tested on real images"
    return (
        "Model selection"
        if "models" in protocol
        else "Complexity of the synthetic images and of what led to them, which reads no real one"
    )


def _group(title: str, measurements: list[Measurement]) -> Group:
    first = measurements[0].protocol
    shared = {
        key: value
        for key, value in first.items()
        if key not in LEFT_TO_JSON and all(each.protocol.get(key, ...) == value for each in measurements)
    }
    rows = []
    for each in measurements:
        own = {key: value for key, value in each.protocol.items() if key not in shared.keys() | LEFT_TO_JSON}
        unit, name = each.protocol.get("unit", ""), each.metric.replace("_", " ")
        plain = each.metric.split(" (")[0]
        name += " (lower is better)" * (plain in LOWER_IS_BETTER) + " (higher is better)" * (plain in HIGHER_IS_BETTER)
        if each.metric in ("entropy", "texture_complexity"):
            name += f", {each.protocol['features']}"
        if "state" in each.protocol:
            name += f", {each.protocol['state']}"
        if {"num_train", "trained_on"} <= each.protocol.keys():
            held_out = each.protocol.get("num_validation") or 0
            name += f", trained on {each.protocol['num_train'] + held_out:,} images ({each.protocol['trained_on']})"
            name += f", {held_out:,} of which choose the epoch" if held_out else ""
        spread = "" if each.standard_error is None else f"± {number(each.standard_error, unit, digits=2)}"
        rows.append({"metric": name, "value": number(each.value, unit), "spread": spread, "protocol": _words(own)})
    return Group(title, _words(shared), rows)


def _words(protocol: dict[str, Any]) -> str:
    """A protocol in words, without what nobody reads on a page, also where it lies deeper."""
    within = {
        key: {name: part for name, part in value.items() if name not in LEFT_TO_JSON}
        if isinstance(value, dict)
        else value
        for key, value in protocol.items()
    }
    return protocol_words(within)
