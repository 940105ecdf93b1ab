# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pictures of a report: sample images as PNG, and charts as SVG with the page's colours, light and dark.

Series differ in shape and in colours that most people can distinguish (Okabe and Ito); marks are explained above the
chart. Needs matplotlib.
"""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import UsageError, install
from ..files.templates import data_uri
from ..release.artefacts import DatasetArtefact
from ..release.image_tables import to_png
from .images import ImageSet
from .measurement import Measurement
from .report import Evaluation


if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 5.2  # inches: legible without zooming on a phone
MOST_NAMES = 20  # classes whose cells are labelled
INK, FAINT, REAL, SYNTHETIC = "#010203", "#040506", "#070809", "#0a0b0c"
#: Placeholder colours in matplotlib's output, and the style's colours that replace them.
COLOURS = {INK: "currentColor", FAINT: "var(--faint)", REAL: "var(--real)", SYNTHETIC: "var(--synthetic)"}
MARKS = (("o", "-", SYNTHETIC), ("D", "--", REAL), ("^", ":", INK))  # of several series
STYLE: Any = {
    "svg.fonttype": "none",  # keeps text in any script searchable, readable aloud, and in the reader's fonts
    "svg.hashsalt": "diffusers_dp",  # for reproducible bytes
    "text.parse_math": False,  # because external class names may contain a dollar sign
    "font.family": "sans-serif",
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "grid.color": FAINT,
    "grid.alpha": 0.4,
    "lines.markersize": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), FAINT),
}


@dataclass(frozen=True)
class Chart:
    """One picture of the page.

    Args:
        title (`str`): Query that the picture answers.
        caption (`str`): What it shows, also for readers who do not see it.
        svg (`str`): Markup, not escaped.
    """

    title: str
    caption: str
    svg: str


def check_plotting() -> None:
    """Checks for matplotlib before an evaluation, which would otherwise fail at its end.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError(f"The report needs matplotlib: {install('plot')}.") from None


def sample_picture(synthetic: ImageSet) -> str:
    """Draws the first images of each class, or of all without labels, as the `data:` URI of a PNG."""
    labels = None if synthetic.labels is None else torch.from_numpy(synthetic.labels)
    grid = DatasetArtefact(torch.from_numpy(synthetic.images), labels, synthetic.class_names).sample_grid()
    return data_uri(to_png(grid), "image/png")


def build_charts(evaluation: Evaluation) -> list[Chart]:
    """Builds the charts for which there are numbers."""
    charts = [confusion_chart(evaluation)] if evaluation.confusion else []
    return charts + sizes_chart([each for each in evaluation.measurements if each.analysis == "classifiers"])


def confusion_chart(evaluation: Evaluation) -> Chart:
    """Draws a confusion matrix with a row per true class, in shares of the row."""
    from sklearn.metrics import ConfusionMatrixDisplay

    best, names = evaluation.best_classifier, evaluation.class_names
    counts = np.asarray(evaluation.confusion[best])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    every = math.ceil(len(names) / MOST_NAMES)

    def draw(axes: "Axes") -> None:
        ConfusionMatrixDisplay(shares).plot(
            ax=axes, cmap="cividis", colorbar=False, include_values=every == 1, values_format=".0%",
            text_kw={"fontsize": max(5.0, min(9.0, 70 / len(names)))},
        )  # fmt: skip
        places, shown = range(0, len(names), every), [_short(name, 14) for name in names[::every]]
        axes.set_xticks(places, shown, rotation=90 if max(map(len, shown)) > 3 else 0)
        axes.set_yticks(places, shown)
        axes.set(xlabel="taken for", ylabel="true class")
        axes.spines[:].set_visible(False)

    words = (
        f"The {best} classifier trained on synthetic images, judged on real test images: {np.trace(counts)} of "
        f"{counts.sum()} are right. Rows are true classes; a cell is its share of the row."
    )
    return Chart("Which classes are mistaken for which?", words, _svg(draw, WIDTH))


def sizes_chart(found: Sequence[Measurement]) -> list[Chart]:
    """Draws accuracy against the number of synthetic images, with a line for each classifier."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for each in found:
        facts = each.protocol
        if facts["trained_on"] == "synthetic":
            point = facts["num_train"] + facts["num_validation"], each.value
            curves.setdefault(facts["classifier"], []).append(point)
    every = sorted({size for curve in curves.values() for size, _ in curve})
    if len(every) < 2:
        return []

    def draw(axes: "Axes") -> None:
        for i, (name, curve) in enumerate(curves.items()):
            marker, line, colour = MARKS[i % 3]
            sizes, values = zip(*sorted(curve), strict=True)
            label, fill = f"{_short(name, 14)} {values[-1]:.1f}%", "full" if i < 3 else "none"
            axes.plot(sizes, values, line, marker=marker, color=colour, fillstyle=fill, label=label)
        axes.set_xscale("log")
        axes.set_xticks(every, [f"{size:,}" for size in every])
        axes.minorticks_off()
        axes.set(xlabel="synthetic images that it was trained on", ylabel="accuracy on real test images, %")
        axes.grid(axis="y")

    words = f"Accuracy on real test images after training on up to {every[-1]:,} synthetic images."
    return [Chart("Would more images help?", words, _svg(draw, 3.2))]


def _svg(draw: "Callable[[Axes], None]", height: float) -> str:
    """Draws on axes of this height in inches, and returns an `<svg>` element without a file header."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # matplotlib measures with a font other than the reader's
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure, file = Figure(figsize=(WIDTH, height), layout="constrained"), io.StringIO()
        axes = figure.subplots()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=3)
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"
