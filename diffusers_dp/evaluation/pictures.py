# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pictures of a report, each with a text alternative."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from . import figures
from .analyses import classifiers_first, function_of
from .images import ImageSet
from .measurement import Measurement
from .report import Evaluation, class_rates


IMAGES_PER_CLASS = 12
SHOWN_NEIGHBOURS, NEIGHBOURS_OF = 3, 12


@dataclass(frozen=True)
class Chart:
    """One picture of the page.

    Args:
        title (`str`): Question that the picture answers.
        svg (`str`): Markup from `figures`, not escaped.
        alt (`str`): Text alternative of the picture.
        caption (`str`): Explanation of the picture.
    """

    title: str
    svg: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Strip:
    """Images in one row: name, `data:` URI of a PNG, text alternative, and number of images."""

    name: str
    uri: str
    alt: str
    count: int


def build_charts(evaluation: Evaluation) -> list[Chart]:
    """Builds the charts for which there are numbers."""
    charts = []
    for analysis in classifiers_first():
        found = [each for each in evaluation.measurements if each.analysis == analysis.name]
        if analysis.chart is not None and (found or analysis.name == "embedding"):
            charts += function_of(analysis.chart)(found, evaluation)
    return charts


def build_samples(evaluation: Evaluation) -> list[Strip]:
    """Shows the first synthetic images of each class, or of all without labels."""
    synthetic = evaluation.image_sets["synthetic"]
    if synthetic.labels is None or synthetic.class_names is None:
        return [_strip("", synthetic.images[:IMAGES_PER_CLASS], "synthetic images")]
    groups = [synthetic.images[synthetic.labels == i][:IMAGES_PER_CLASS] for i in range(len(synthetic.class_names))]
    named = zip(synthetic.class_names, groups, strict=True)
    return [_strip(name, images, f"synthetic images of class {name}") for name, images in named if len(images)]


def build_neighbours(sets: Mapping[str, ImageSet]) -> list[tuple[Strip, Strip]]:
    """Shows **single real images**: for each of the first synthetic ones the three that are nearest in pixels."""
    from .extractors import PixelExtractor
    from .fidelity import nearest_neighbours

    synthetic, real, pixels = sets["synthetic"], sets["real training"], PixelExtractor()
    synthetic = synthetic.subset(np.arange(min(NEIGHBOURS_OF, len(synthetic))))
    found, _ = nearest_neighbours(pixels(real.images), pixels(synthetic.images), SHOWN_NEIGHBOURS)
    names = (
        [""] * len(found) if synthetic.labels is None else [(synthetic.class_names or ())[i] for i in synthetic.labels]
    )
    return [
        (_strip(name, image[None], "synthetic image"),
         _strip("", real.images[nearest], "real images, the nearest first"))
        for name, image, nearest in zip(names, synthetic.images, found, strict=True)
    ]  # fmt: skip


def _strip(name: str, images: np.ndarray, words: str) -> Strip:
    return Strip(name, figures.strip(images), f"{len(images)} {words}", len(images))


def utility_charts(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    names, confusion = evaluation.class_names, evaluation.confusion
    right = {name: np.trace(np.array(counts)) for name, counts in confusion.items()}
    best = max(right, key=lambda name: right[name])
    counts, worst = confusion[best], evaluation.rates(best)[0]
    charts = [
        Chart(
            "Which classes are mistaken for which?",
            figures.draw_confusion(counts, names),
            f"Confusion matrix of the {best} classifier trained on synthetic images, judged on real test images: "
            f"{right[best]} of {np.sum(counts)} images are right.",
            f"The {best} classifier trained on synthetic images, judged on real test images. Rows are true classes; "
            "the shade is the share of the row.",
        ),
        Chart(
            "Who is served worse?",
            figures.draw_class_rates(class_rates(counts, names)),
            f"Accuracy and precision of each class; the worst is {worst['class']} with an accuracy of "
            f"{worst['accuracy']:.1%}.",
            f"Accuracy: the share of a class's real images that the {best} classifier finds. Precision: the share "
            "of its answers with that class that are right."
            + (f" The {figures.MOST_ROWS} worst of {len(names)}." if len(names) > figures.MOST_ROWS else ""),
        ),
    ]
    curves: dict[str, list[tuple[int, float]]] = {}
    for facts, value in ((each.protocol, each.value) for each in found if each.metric == "accuracy"):
        if facts["trained_on"] == "synthetic":
            point = facts["num_train"] + facts["num_validation"], value / 100
            curves.setdefault(facts["classifier"], []).append(point)
    if any(len(curve) > 1 for curve in curves.values()):
        ends = ", ".join(f"{name} {max(curve)[1]:.1%} with {max(curve)[0]:,}" for name, curve in curves.items())
        words = f"Accuracy on real test images against the number of synthetic images: {ends}."
        charts.append(Chart("Would more images help?", figures.draw_sizes(curves), words))
    return charts


def embedding_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    if evaluation.embedding is None:
        return []
    points, num_real, extractor = evaluation.embedding
    return [
        Chart(
            "Do they lie in the same places?",
            figures.draw_embedding(points, num_real),
            f"t-SNE of {num_real} real and {len(points) - num_real} synthetic images by features of {extractor}.",
            f"t-SNE, features of {extractor}. Places without crosses are not covered; distances and sizes of groups "
            "mean nothing.",
        )
    ]


def class_charts(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    charts = []
    groups: dict[str, dict[str, Measurement]] = {}
    for each in found:
        if "class" in each.protocol:
            groups.setdefault(each.protocol["extractor"], {})[each.protocol["class"]] = each
    for extractor, group in groups.items():
        worst, largest = max(group.items(), key=lambda item: item[1].value)
        title = largest.metric.removesuffix(f" of class {worst}")
        picture = figures.draw_class_distances({name: each.value for name, each in group.items()}, title)
        words = f"{title} of each class; the largest is that of {worst}, {largest.value:.3g}."
        charts.append(Chart(f"Which classes look least real? ({extractor})", picture, words))
    return charts


def curve_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    points = [(each.protocol["state"], each.protocol["dp_sgd_step"], each.value) for each in found]
    metric, images = found[0].metric, found[0].protocol["drawing"]["num_images"]
    return [
        Chart(
            "How far did each stage bring it?",
            figures.draw_training_curve(points, metric),
            f"{metric} against the training step: {', '.join(f'{name} {value:.3g}' for name, _, value in points)}.",
            f"{metric}, lower is better; {images:,} images of each state that the run kept, so that the numbers "
            "compare with each other and not with those above. The release's guarantee covers these states as well.",
        )
    ]


def ranking_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    regret = found[-1]
    names, synthetic, real = (regret.protocol[key] for key in ("models", "accuracy_on_synthetic", "accuracy_on_real"))
    chosen = regret.protocol["chosen_on_synthetic"]
    words = (
        f"{len(names)} models; the one chosen on synthetic images, {chosen}, is {regret.value:.1f} points below the "
        "best on real ones."
    )
    return [
        Chart(
            "Would the best model be found on synthetic images?",
            figures.draw_ranking(names, synthetic, real, names.index(chosen)),
            f"Accuracy on held-out synthetic images against accuracy on real test images of {words}",
            words,
        )
    ]
