# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pictures of a report: strips of images as PNG, and charts as SVG with the page's colours, light and dark.

Series differ in shape and in colours that most people can distinguish (Okabe and Ito); marks are explained above the
chart. Needs matplotlib.
"""

import base64
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..errors import UsageError
from .measurement import Measurement
from .report import Evaluation, class_rates


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

IMAGES_PER_CLASS = 12
WIDTH = 5.2  # inches: legible without zooming on a phone
MOST_ROWS = 40  # classes in one chart
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


@dataclass(frozen=True)
class Strip:
    """Images in one row: name, `data:` URI of a PNG, text alternative, and number of images."""

    name: str
    uri: str
    alt: str
    count: int


def check_plotting() -> None:
    """Checks for matplotlib before an evaluation, which would otherwise fail at its end.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError('The report needs matplotlib; pip install "diffusers_dp[plot]".') from None


def build_samples(evaluation: Evaluation) -> list[Strip]:
    """Shows the first synthetic images of each class, or of all without labels."""
    synthetic = evaluation.image_sets["synthetic"]
    groups = [("", synthetic.images, "synthetic images")]
    if synthetic.labels is not None and synthetic.class_names is not None:
        groups = [
            (name, synthetic.images[synthetic.labels == i], f"synthetic images of class {name}")
            for i, name in enumerate(synthetic.class_names)
        ]
    shown = [(name, images[:IMAGES_PER_CLASS], words) for name, images, words in groups if len(images)]
    return [Strip(name, _strip(images), f"{len(images)} {words}", len(images)) for name, images, words in shown]


def _strip(images: np.ndarray) -> str:
    """Draws images `[n, C, H, W]` of uint8 side by side as the `data:` URI of a PNG, which the page magnifies."""
    n, _, height, width = images.shape
    rows = np.zeros((height, n * (width + 1) - 1, 4), dtype=np.uint8)  # transparent between the images
    for i, image in enumerate(images):
        place = slice(i * (width + 1), i * (width + 1) + width)
        rows[:, place, :3] = image.transpose(1, 2, 0)  # repeats grey channels
        rows[:, place, 3] = 255
    file = io.BytesIO()
    Image.fromarray(rows).save(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def build_charts(evaluation: Evaluation) -> list[Chart]:
    """Builds the charts for which there are numbers."""
    of_analysis = {
        "classifiers": (confusion_chart, class_rates_chart, sizes_chart), "class_fid": (class_distances_chart,),
        "training_curve": (curve_chart,), "model_selection": (ranking_chart,),
    }  # fmt: skip
    charts: list[Chart] = []
    for name, functions in of_analysis.items():
        if found := [each for each in evaluation.measurements if each.analysis == name]:
            charts += [chart for draw in functions for chart in draw(found, evaluation)]
    return charts


def confusion_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    """Draws a confusion matrix with a row per true class; the shade of a cell is its share of the row, its number the
    count."""
    best, names = evaluation.best_classifier, evaluation.class_names
    matrix = np.asarray(evaluation.confusion[best], dtype=np.float64)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)

    def draw(axes: "Axes") -> None:
        axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
        axes.set(xlabel="taken for", ylabel="true class")
        places = range(0, len(names), math.ceil(len(names) / MOST_NAMES))
        shown = [_short(names[i], 14) for i in places]
        axes.set_xticks(places, shown, rotation=90 if max(map(len, shown)) > 3 else 0)
        axes.set_yticks(places, shown)
        axes.spines[:].set_visible(False)
        size = max(5.0, min(9.0, 70 / len(names)))
        for (row, column), count in np.ndenumerate(matrix) if len(names) <= MOST_NAMES else ():
            colour = "#000000" if shares[row, column] > 0.55 else "#ffffff"
            axes.text(column, row, f"{count:g}", ha="center", va="center", fontsize=size, color=colour)

    words = (
        f"The {best} classifier trained on synthetic images, judged on real test images: {np.trace(matrix):g} of "
        f"{matrix.sum():g} are right. Rows are true classes; the shade is the share of the row."
    )
    return [Chart("Which classes are mistaken for which?", words, _svg(draw, WIDTH))]


def class_rates_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    """Draws accuracy and precision of each class, the worst class on top."""
    best, names = evaluation.best_classifier, evaluation.class_names
    rates = class_rates(evaluation.confusion[best], names)
    rows = sorted(rates, key=lambda row: 2.0 if row["accuracy"] is None else row["accuracy"])[:MOST_ROWS]
    accuracy, precision = (np.array([row[name] for row in rows], np.float64) for name in ("accuracy", "precision"))

    def draw(axes: "Axes") -> None:
        axes.hlines(range(len(rows)), accuracy, precision, color=FAINT, linewidth=1)
        axes.plot(accuracy, range(len(rows)), "o", color=SYNTHETIC, label="accuracy (number at the right)", zorder=3)
        axes.plot(precision, range(len(rows)), "D", color=REAL, fillstyle="none", label="precision")
        for y, value in enumerate(accuracy):
            words = "no real image" if np.isnan(value) else f"{value:.1%}"
            axes.text(1.02, y, words, va="center", transform=axes.get_yaxis_transform())
        _name_rows(axes, [row["class"] for row in rows])
        axes.set_xlim(np.nanmin([0.5, *accuracy, *precision]) - 0.02, 1.01)
        _per_cent(axes.xaxis)

    words = (
        f"Accuracy: the share of a class's real images that the {best} classifier finds. Precision: the share of its "
        f"answers with that class that are right. The worst class is {rows[0]['class']}."
    )
    if len(names) > MOST_ROWS:
        words += f" Shown are the {MOST_ROWS} worst of {len(names)}."
    return [Chart("Who is served worse?", words, _svg(draw, _height(len(rows))))]


def sizes_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    """Draws accuracy against the number of synthetic images, with a line for each classifier."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for each in found:
        facts = each.protocol
        if each.metric == "accuracy" and facts["trained_on"] == "synthetic":
            point = facts["num_train"] + facts["num_validation"], each.value / 100
            curves.setdefault(facts["classifier"], []).append(point)
    every = sorted({size for curve in curves.values() for size, _ in curve})
    if len(every) < 2:
        return []

    def draw(axes: "Axes") -> None:
        for i, (name, curve) in enumerate(curves.items()):
            marker, line, colour = MARKS[i % 3]
            sizes, values = zip(*sorted(curve), strict=True)
            fill = "full" if i < 3 else "none"
            label = f"{_short(name, 14)} {values[-1]:.1%}"
            axes.plot(sizes, values, line, marker=marker, color=colour, fillstyle=fill, label=label)
        axes.set_xscale("log")
        axes.set_xticks(every, [f"{size:,}" for size in every])
        axes.minorticks_off()
        _per_cent(axes.yaxis)
        axes.set(xlabel="synthetic images that it was trained on", ylabel="accuracy on real test images")
        axes.grid(axis="y")

    words = f"Accuracy on real test images after training on up to {every[-1]:,} synthetic images."
    return [Chart("Would more images help?", words, _svg(draw, 3.2))]


def class_distances_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    """Draws for each feature space a bar for each class, the worst on top."""
    charts = []
    groups: dict[str, list[Measurement]] = {}
    for each in found:
        if "class" in each.protocol:
            groups.setdefault(each.protocol["extractor"], []).append(each)
    for extractor, group in groups.items():
        group.sort(key=lambda each: -each.value)
        metric, _, worst = group[0].metric.partition(" of class ")
        rows = {each.protocol["class"]: each.value for each in group[:MOST_ROWS]}

        def draw(axes: "Axes", rows: dict[str, float] = rows, metric: str = metric) -> None:
            bars = axes.barh(range(len(rows)), list(rows.values()), height=0.65, color=SYNTHETIC)
            axes.bar_label(bars, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in rows.values()],
                           padding=4)  # fmt: skip
            _name_rows(axes, list(rows))
            axes.margins(x=0.12)
            axes.set_xlabel(f"{metric}; lower is better")

        words = f"{metric} of each class; the largest is that of {worst}, {group[0].value:.3g}."
        charts.append(Chart(f"Which classes look least real? ({extractor})", words, _svg(draw, _height(len(rows)))))
    return charts


def curve_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    """Draws a distance against the step of DP-SGD; stages of the warm-up are evenly spaced before step 0."""
    points = [(each.protocol["state"], each.protocol["dp_sgd_step"], each.value) for each in found]
    metric, images = found[0].metric, found[0].protocol["drawing"]["num_images"]
    early = sum(step is None for _, step, _ in points)
    last = max((step or 0 for _, step, _ in points), default=0) or early or 1
    places = [last * 0.25 * (i - early) if step is None else step for i, (_, step, _) in enumerate(points)]

    def draw(axes: "Axes") -> None:
        axes.plot(places, [value for *_, value in points], "-o", color=SYNTHETIC)
        every = math.ceil(len(points) / 10)
        shown = [i for i, (_, step, _) in enumerate(points) if i % every == 0 or i == len(points) - 1 or not step]
        names = [f"{step:,}" if step else _short(name, 24) for name, step, _ in points]
        axes.set_xticks([places[i] for i in shown], [names[i] for i in shown], rotation=45, ha="right")
        axes.margins(x=0.07, y=0.15)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="step of DP-SGD", ylabel=_short(metric, 34))
        axes.grid(axis="y")

    words = (
        f"{metric}, lower is better, from {points[0][2]:.3g} to {points[-1][2]:.3g}; {images:,} images of each state "
        "that the run kept, so that the numbers compare with each other and not with those above. The release's "
        "guarantee covers these states as well."
    )
    return [Chart("How far did each stage bring it?", words, _svg(draw, 3.4))]


def ranking_chart(found: Sequence[Measurement], evaluation: Evaluation) -> list[Chart]:
    """Draws accuracies of the same models on held-out synthetic and on real images, in per cent, with a mark for each
    kind of model."""
    regret = found[-1]
    names, synthetic, real = (regret.protocol[key] for key in ("models", "accuracy_on_synthetic", "accuracy_on_real"))
    chosen = names.index(regret.protocol["chosen_on_synthetic"])
    of_kind: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        of_kind.setdefault(name.split(",")[0], []).append(i)

    def draw(axes: "Axes") -> None:
        for (kind, which), (marker, _, colour) in zip(of_kind.items(), MARKS, strict=False):
            axes.plot([synthetic[j] for j in which], [real[j] for j in which], marker, color=colour, label=kind)
        place, label = (synthetic[chosen], real[chosen]), "chosen on synthetic images"
        axes.plot(*place, "o", color=INK, markersize=13, fillstyle="none", label=label)
        axes.margins(0.1)
        _per_cent(axes.xaxis, 100)
        _per_cent(axes.yaxis, 100)
        axes.set(xlabel="accuracy on held-out synthetic images", ylabel="accuracy on real test images")
        axes.grid()

    words = (
        f"{len(names)} models; the one chosen on synthetic images, {names[chosen]}, is {regret.value:.1f} points "
        "below the best on real ones."
    )
    return [Chart("Would the best model be found on synthetic images?", words, _svg(draw, 3.4))]


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


def _height(rows: int) -> float:
    return 0.9 + 0.24 * rows


def _per_cent(axis: "Axis", whole: int = 1) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(whole))


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name, 24) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"
