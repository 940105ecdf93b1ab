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
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import numpy as np
from PIL import Image

from ..errors import UsageError


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

P = ParamSpec("P")
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


def check_plotting() -> None:
    """Checks for matplotlib before an evaluation, which would otherwise fail at its end.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError('The report needs matplotlib; pip install "diffusers_dp[plot]".') from None


def strip(images: np.ndarray) -> str:
    """Draws images side by side as the `data:` URI of a PNG, which the page magnifies.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`): Images.
    """
    n, channels, height, width = images.shape
    rows = np.zeros((height, n * (width + 1) - 1, 4), dtype=np.uint8)  # transparent between the images
    for i, image in enumerate(images):
        place = slice(i * (width + 1), i * (width + 1) + width)
        rows[:, place, :3] = image.transpose(1, 2, 0)  # repeats grey channels
        rows[:, place, 3] = 255
    file = io.BytesIO()
    Image.fromarray(rows).save(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _chart(height: float | None = None) -> "Callable[[Callable[Concatenate[Axes, P], None]], Callable[P, str]]":
    """Makes a function that draws on axes return the chart as an `<svg>` element, without a file header.

    Args:
        height (`float`, *optional*): Inches; defaults to a line for each entry of the function's first argument.
    """

    def decorate(draw: "Callable[Concatenate[Axes, P], None]") -> Callable[P, str]:
        @wraps(draw)
        def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
            import matplotlib
            from matplotlib.figure import Figure

            inches = height or 0.9 + 0.24 * min(len(args[0]), MOST_ROWS)  # type: ignore[arg-type]
            with matplotlib.rc_context(STYLE), warnings.catch_warnings():
                # matplotlib measures with a font other than the reader's
                warnings.filterwarnings("ignore", "Glyph .* missing from")
                figure, file = Figure(figsize=(WIDTH, inches), layout="constrained"), io.StringIO()
                axes = figure.subplots()
                figure.patch.set_visible(False)
                axes.patch.set_visible(False)
                draw(axes, *args, **kwargs)
                if axes.get_legend_handles_labels()[0]:
                    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=3)
                figure.savefig(
                    file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
                )
            svg = file.getvalue()
            svg = svg[svg.index("<svg") :]
            for colour, variable in COLOURS.items():
                svg = svg.replace(colour, variable)
            return svg

        return drawn

    return decorate


@_chart(WIDTH)
def draw_confusion(axes: "Axes", counts: Sequence[Sequence[int]], class_names: Sequence[str]) -> None:
    """Draws a confusion matrix with a row per true class; the shade of a cell is its share of the row, its number the
    count."""
    matrix = np.asarray(counts, dtype=np.float64)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
    axes.set(xlabel="taken for", ylabel="true class")
    places = range(0, len(class_names), math.ceil(len(class_names) / MOST_NAMES))
    names = [_short(class_names[i], 14) for i in places]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 3 else 0)
    axes.set_yticks(places, names)
    axes.spines[:].set_visible(False)
    for (row, column), count in np.ndenumerate(matrix) if len(class_names) <= MOST_NAMES else ():
        colour, size = "#000000" if shares[row, column] > 0.55 else "#ffffff", min(9.0, 70 / len(class_names))
        axes.text(column, row, f"{count:g}", ha="center", va="center", fontsize=max(5.0, size), color=colour)


@_chart()
def draw_class_rates(axes: "Axes", rates: Sequence[dict[str, Any]]) -> None:
    """Draws accuracy and precision of each class, the worst class on top."""
    rows = sorted(rates, key=lambda row: 2.0 if row["accuracy"] is None else row["accuracy"])[:MOST_ROWS]
    accuracy, precision = (np.array([row[name] for row in rows], np.float64) for name in ("accuracy", "precision"))
    axes.hlines(range(len(rows)), accuracy, precision, color=FAINT, linewidth=1)
    axes.plot(accuracy, range(len(rows)), "o", color=SYNTHETIC, label="accuracy (number at the right)", zorder=3)
    axes.plot(precision, range(len(rows)), "D", color=REAL, fillstyle="none", label="precision")
    for y, found in enumerate(accuracy):
        words = "no real image" if np.isnan(found) else f"{found:.1%}"
        axes.text(1.02, y, words, va="center", transform=axes.get_yaxis_transform())
    _name_rows(axes, [row["class"] for row in rows])
    axes.set_xlim(np.nanmin([0.5, *accuracy, *precision]) - 0.02, 1.01)
    _per_cent(axes.xaxis)


@_chart(4.4)
def draw_embedding(axes: "Axes", points: np.ndarray, num_real: int) -> None:
    """Draws t-SNE points `[n, 2]`; the first `num_real` are real images, the others synthetic."""
    axes.plot(*points[:num_real].T, "o", color=REAL, markersize=2.6, alpha=0.55, markeredgewidth=0, label="real")
    axes.plot(*points[num_real:].T, "x", color=SYNTHETIC, markersize=2.8, alpha=0.7, label="synthetic")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


@_chart(3.2)
def draw_sizes(axes: "Axes", curves: dict[str, list[tuple[int, float]]]) -> None:
    """Draws accuracy against the number of synthetic images, with a line for each classifier."""
    for i, (name, curve) in enumerate(curves.items()):
        marker, line, colour = MARKS[i % 3]
        sizes, values = zip(*sorted(curve), strict=True)
        fill = "full" if i < 3 else "none"
        label = f"{_short(name, 14)} {values[-1]:.1%}"
        axes.plot(sizes, values, line, marker=marker, color=colour, fillstyle=fill, label=label)
    axes.set_xscale("log")
    every = sorted({size for curve in curves.values() for size, _ in curve})
    axes.set_xticks(every, [f"{size:,}" for size in every])
    axes.minorticks_off()
    _per_cent(axes.yaxis)
    axes.set(xlabel="synthetic images that it was trained on", ylabel="accuracy on real test images")
    axes.grid(axis="y")


@_chart()
def draw_class_distances(axes: "Axes", distances: dict[str, float], title: str) -> None:
    """Draws a bar for each class, the worst on top."""
    rows = sorted(distances.items(), key=lambda item: -item[1])[:MOST_ROWS]
    bars = axes.barh(range(len(rows)), [value for _, value in rows], height=0.65, color=SYNTHETIC)
    axes.bar_label(bars, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for _, value in rows], padding=4)
    _name_rows(axes, [name for name, _ in rows])
    axes.margins(x=0.12)
    axes.set_xlabel(f"{title}; lower is better")


@_chart(3.4)
def draw_training_curve(axes: "Axes", points: Sequence[tuple[str, int | None, float]], title: str) -> None:
    """Draws a distance against the step of DP-SGD; stages of the warm-up are evenly spaced before step 0.

    Args:
        points (sequence of `tuple`): Name, step (`None` before step 0) and value of each point, in the order of the
            run.
    """
    early = sum(step is None for _, step, _ in points)
    last = max((step or 0 for _, step, _ in points), default=0) or early or 1
    places = [last * 0.25 * (i - early) if step is None else step for i, (_, step, _) in enumerate(points)]
    axes.plot(places, [value for *_, value in points], "-o", color=SYNTHETIC)
    every = math.ceil(len(points) / 10)
    shown = [i for i, (_, step, _) in enumerate(points) if i % every == 0 or i == len(points) - 1 or not step]
    names = [f"{step:,}" if step else _short(name, 24) for name, step, _ in points]
    axes.set_xticks([places[i] for i in shown], [names[i] for i in shown], rotation=45, ha="right")
    for i in (0, len(points) - 1):
        place = places[i], points[i][2]
        axes.annotate(f"{place[1]:.3g}", place, xytext=(0, 6), textcoords="offset points", ha="center")
    axes.margins(x=0.07, y=0.15)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="step of DP-SGD", ylabel=_short(title, 34))
    axes.grid(axis="y")


@_chart(3.4)
def draw_ranking(
    axes: "Axes", names: Sequence[str], synthetic: Sequence[float], real: Sequence[float], chosen: int
) -> None:
    """Draws accuracies of the same models on held-out synthetic and on real images, in per cent, with a mark for each
    kind of model."""
    of_kind: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        of_kind.setdefault(name.split(",")[0], []).append(i)
    for i, (kind, which) in enumerate(of_kind.items()):
        marker, _, colour = MARKS[i % 3]
        axes.plot([synthetic[j] for j in which], [real[j] for j in which], marker, color=colour, label=kind)
    place, label = (synthetic[chosen], real[chosen]), "chosen on synthetic images"
    axes.plot(*place, "o", color=INK, markersize=13, fillstyle="none", label=label)
    axes.margins(0.1)
    _per_cent(axes.xaxis, 1)
    _per_cent(axes.yaxis, 1)
    axes.set(xlabel="accuracy on held-out synthetic images", ylabel="accuracy on real test images")
    axes.grid()


def _per_cent(axis: "Axis", times: int = 100) -> None:
    axis.set_major_formatter(lambda value, _: f"{round(times * value, 6):g}%")


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name, 24) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"
