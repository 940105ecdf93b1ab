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
    strips = []
    for index, name in enumerate(synthetic.class_names):
        images = synthetic.images[synthetic.labels == index][:IMAGES_PER_CLASS]
        if len(images):
            strips.append(_strip(name, images, f"synthetic images of class {name}"))
    return strips


def build_neighbours(sets: Mapping[str, ImageSet]) -> list[tuple[Strip, Strip]]:
    """Shows **single real images**: for each of the first synthetic ones the three that are nearest in pixels."""
    from .extractors import PixelExtractor
    from .fidelity import nearest_neighbours

    synthetic, real, pixels = sets["synthetic"], sets["real training"], PixelExtractor()
    synthetic = synthetic.subset(np.arange(min(NEIGHBOURS_OF, len(synthetic))))
    found, _ = nearest_neighbours(pixels(real.images), pixels(synthetic.images), SHOWN_NEIGHBOURS)
    names = synthetic.class_names or ()
    return [
        (
            _strip("" if synthetic.labels is None else names[synthetic.labels[i]], synthetic.images[i : i + 1],
                   "synthetic image"),
            _strip("", real.images[nearest], "real images, the nearest first"),
        )
        for i, nearest in enumerate(found)
    ]  # fmt: skip


def _strip(name: str, images: np.ndarray, words: str) -> Strip:
    return Strip(name, figures.strip(images), f"{len(images)} {words}", len(images))


def utility_charts(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    names, confusion = evaluation.class_names, evaluation.confusion
    right = {name: np.trace(np.array(counts)) for name, counts in confusion.items()}
    best = max(right, key=lambda name: right[name])
    counts, worst = confusion[best], evaluation.rates(best)[0]
    known = "classifier trained on synthetic images, judged on real test images"
    charts = [
        Chart(
            "Which classes are mistaken for which?",
            figures.draw_confusion(counts, names),
            f"Confusion matrix of the {best} {known}: {right[best]} of {np.sum(counts)} images are right.",
            f"The {best} {known}. Rows are true classes; the shade is the share of the row.",
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
    for each in found:
        facts = each.protocol
        if each.metric == "accuracy" and facts["trained_on"] == "synthetic":
            size = facts["num_train"] + facts["num_validation"]
            curves.setdefault(facts["classifier"], []).append((size, each.value / 100))
    if any(len(curve) > 1 for curve in curves.values()):
        ends = ", ".join(f"{name} {max(curve)[1]:.1%} with {max(curve)[0]:,}" for name, curve in curves.items())
        charts.append(
            Chart(
                "Would more images help?",
                figures.draw_sizes(curves),
                f"Accuracy on real test images against the number of synthetic images: {ends}.",
            )
        )
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
    for extractor, group in _by_extractor([each for each in found if "class" in each.protocol]).items():
        distances = {each.protocol["class"]: each.value for each in group}
        title = group[0].metric.removesuffix(f" of class {group[0].protocol['class']}")
        worst = max(distances, key=lambda name: distances[name])
        charts.append(
            Chart(
                f"Which classes look least real? ({extractor})",
                figures.draw_class_distances(distances, title),
                f"{title} of each class; the largest is that of {worst}, {distances[worst]:.3g}.",
            )
        )
    return charts


def domain_charts(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    charts = []
    for extractor, (share, accuracy) in _by_extractor(found).items():
        charts.append(
            Chart(
                f"Closer to the private or to the public images? ({extractor})",
                figures.draw_domain(share.value, share.standard_error or 0.0, accuracy.value),
                f"{share.value:.1%} of the synthetic images are taken for private ones by a discriminator of accuracy "
                f"{accuracy.value:.1%}.",
                "A logistic regression tells real private from public images, and judges the synthetic ones.",
            )
        )
    return charts


def curve_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
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
            f"{words[0].upper()}{words[1:]}",
        )
    ]


def _by_extractor(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for each in measurements:
        groups.setdefault(each.protocol["extractor"], []).append(each)
    return groups
