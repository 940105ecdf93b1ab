# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pictures of a report, each with a text alternative."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import figures
from .evaluator import Evaluator
from .measurement import Measurement
from .page import Chart, Strip
from .report import Evaluation, class_rates


IMAGES_PER_CLASS = 12
SHOWN_NEIGHBOURS, NEIGHBOURS_OF = 3, 12


def build_charts(evaluation: Evaluation, embedding: tuple[np.ndarray, int, str]) -> list[Chart]:
    """Builds the charts for which there are numbers.

    Args:
        evaluation (`Evaluation`): Results.
        embedding (`tuple`): Points, number of real ones among them, and extractor.
    """
    measurements = evaluation.measurements
    charts = _utility_charts(evaluation) + _embedding_chart(*embedding)
    charts += _class_charts(measurements) + _domain_charts(measurements)
    return charts + _curve_chart(measurements) + _ranking_chart(measurements)


def build_samples(evaluation: Evaluation) -> list[Strip]:
    """Shows the first synthetic images of each class, or of all without labels."""
    synthetic = evaluation.image_sets["synthetic"]
    if synthetic.labels is None or synthetic.class_names is None:
        return [_strip("", synthetic.images[:IMAGES_PER_CLASS], "synthetic images")]
    strips = []
    for index, name in enumerate(synthetic.class_names):
        images = synthetic.images[synthetic.labels == index][:IMAGES_PER_CLASS]
        if len(images):
            strips.append(_strip(name, images, f"synthetic images of class {name}"))
    return strips


def build_neighbours(evaluation: Evaluation, evaluator: Evaluator) -> list[tuple[Strip, Strip]]:
    """Shows **single real images**: the three nearest to each of the first synthetic ones."""
    which = np.arange(min(NEIGHBOURS_OF, len(evaluator.synthetic)))
    found = evaluator.neighbours(which, SHOWN_NEIGHBOURS)
    names, labels = evaluation.class_names, evaluator.synthetic.labels
    return [
        (
            _strip(
                names[labels[i]] if labels is not None else "",
                evaluator.synthetic.images[i : i + 1],
                "synthetic image",
            ),
            _strip("", evaluator.real_train.images[nearest], "real images, the nearest first"),
        )
        for i, nearest in zip(which, found, strict=True)
    ]


def _strip(name: str, images: np.ndarray, words: str) -> Strip:
    return Strip(name, figures.strip(images), f"{len(images)} {words}", len(images))


def _utility_charts(evaluation: Evaluation) -> list[Chart]:
    charts = []
    names = evaluation.class_names
    if evaluation.confusion:
        best = max(evaluation.confusion, key=lambda name: np.trace(np.array(evaluation.confusion[name])))
        counts = evaluation.confusion[best]
        rates = class_rates(counts, names)
        worst = min((row for row in rates if row["accuracy"] is not None), key=lambda row: row["accuracy"])
        known = "classifier trained on synthetic images, judged on real test images"
        charts.append(
            Chart(
                "Which classes are mistaken for which?",
                figures.draw_confusion(counts, names),
                f"Confusion matrix of the {best} {known}: {np.trace(np.array(counts))} of {np.sum(counts)} images are "
                "right.",
                f"The {best} {known}. Rows are true classes; the shade is the share of the row.",
            )
        )
        charts.append(
            Chart(
                "Who is served worse?",
                figures.draw_class_rates(rates),
                f"Accuracy and precision of each class; the worst is {worst['class']} with an accuracy of "
                f"{worst['accuracy']:.1%}.",
                f"Accuracy: the share of a class's real images that the {best} classifier finds. Precision: the share "
                "of its answers with that class that are right."
                + (f" The {figures.MOST_ROWS} worst of {len(names)}." if len(names) > figures.MOST_ROWS else ""),
            )
        )
    if any(len(curve) > 1 for curve in evaluation.size_curves.values()):
        ends = ", ".join(
            f"{name} {max(curve)[1]:.1%} with {max(curve)[0]:,}" for name, curve in evaluation.size_curves.items()
        )
        charts.append(
            Chart(
                "Would more images help?",
                figures.draw_sizes(evaluation.size_curves),
                f"Accuracy on real test images against the number of synthetic images: {ends}.",
            )
        )
    return charts


def _embedding_chart(points: np.ndarray, num_real: int, extractor: str) -> list[Chart]:
    return [
        Chart(
            "Do they lie in the same places?",
            figures.draw_embedding(points, num_real),
            f"t-SNE of {num_real} real and {len(points) - num_real} synthetic images by features of {extractor}.",
            f"t-SNE, features of {extractor}. Places without crosses are not covered; distances and sizes of groups "
            "mean nothing.",
        )
    ]


def _class_charts(measurements: list[Measurement]) -> list[Chart]:
    charts = []
    for extractor, found in _by_extractor(
        measurements, lambda each: {"class", "extractor"} <= each.protocol.keys()
    ).items():
        distances = {each.protocol["class"]: each.value for each in found}
        title = found[0].metric.removesuffix(f" of class {found[0].protocol['class']}")
        worst = max(distances, key=lambda name: distances[name])
        charts.append(
            Chart(
                f"Which classes look least real? ({extractor})",
                figures.draw_class_distances(distances, title),
                f"{title} of each class; the largest is that of {worst}, {distances[worst]:.3g}.",
            )
        )
    return charts


def _domain_charts(measurements: list[Measurement]) -> list[Chart]:
    charts = []
    domain = _by_extractor(measurements, lambda each: "public_origin" in each.protocol)
    for extractor, found in domain.items():
        share = next(each for each in found if each.metric.startswith("share"))
        accuracy = next(each.value for each in found if each.metric.startswith("accuracy"))
        charts.append(
            Chart(
                f"Closer to the private or to the public images? ({extractor})",
                figures.draw_domain(share.value, share.standard_error or 0.0, accuracy),
                f"{share.value:.1%} of the synthetic images are taken for private ones by a discriminator of accuracy "
                f"{accuracy:.1%}.",
                "A logistic regression tells real private from public images, and judges the synthetic ones.",
            )
        )
    return charts


def _curve_chart(measurements: list[Measurement]) -> list[Chart]:
    found = [each for each in measurements if "state" in each.protocol]
    if not found:
        return []
    points = [(each.protocol["state"], each.protocol["dp_sgd_step"], each.value) for each in found]
    images = found[0].protocol["drawing"]["num_images"]
    return [
        Chart(
            "How far did each stage bring it?",
            figures.draw_training_curve(points, found[0].metric),
            f"{found[0].metric} against the training step: "
            + ", ".join(f"{name} {value:.3g}" for name, _, value in points)
            + ".",
            f"{found[0].metric}, lower is better; {images:,} images of each state that the run kept, so that the "
            "numbers compare with each other and not with those above. The release's guarantee covers these states as "
            "well.",
        )
    ]


def _ranking_chart(measurements: list[Measurement]) -> list[Chart]:
    found = next((each for each in measurements if each.metric == "model selection: regret"), None)
    if found is None:
        return []
    names, synthetic, real = (found.protocol[key] for key in ("models", "accuracy_on_synthetic", "accuracy_on_real"))
    chosen = found.protocol["chosen_on_synthetic"]
    words = (
        f"{len(names)} models; the one chosen on synthetic images, {chosen}, is {found.value:.1f} points below the "
        "best on real ones."
    )
    return [
        Chart(
            "Would the best model be found on synthetic images?",
            figures.draw_ranking(names, synthetic, real, names.index(chosen)),
            f"Accuracy on held-out synthetic images against accuracy on real test images of {words}",
            f"{words[0].upper()}{words[1:]}",
        )
    ]


def _by_extractor(
    measurements: list[Measurement], wanted: Callable[[Measurement], Any]
) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for each in measurements:
        if wanted(each):
            groups.setdefault(each.protocol["extractor"], []).append(each)
    return groups
