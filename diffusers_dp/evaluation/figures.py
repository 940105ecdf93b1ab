# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pictures of a report: strips of images as PNG, and charts as SVG with the page's colours, light and dark.

Series differ in shape and in colours that most people can distinguish (Okabe and Ito); marks are explained beside the
chart. Needs matplotlib.
"""

import base64
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..errors import UsageError


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.2  # inches: legible without zooming on a phone
MOST_ROWS = 40  # classes in one chart
MOST_NAMES = 20  # classes whose cells are labelled
INK, FAINT, REAL, SYNTHETIC = "#010203", "#040506", "#070809", "#0a0b0c"
#: Placeholder colours in matplotlib's output, and the style's colours that replace them.
COLOURS = {INK: "currentColor", FAINT: "var(--faint)", REAL: "var(--real)", SYNTHETIC: "var(--synthetic)"}
MARKS = (("●", "o"), ("◆", "D"), ("▲", "^"))
COLOURS_OF_MARKS = (SYNTHETIC, REAL, INK)
STYLE: Any = {
    "svg.fonttype": "none",  # keeps text in any script searchable, readable aloud, and in the reader's fonts
    "svg.hashsalt": "diffusers_dp",  # for reproducible bytes
    "text.parse_math": False,  # because external class names may contain a dollar sign
    "font.family": "sans-serif",
    "font.size": 9,
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


def draw_confusion(counts: Sequence[Sequence[int]], class_names: Sequence[str]) -> str:
    """Draws a confusion matrix with a row per true class; the shade of a cell is its share of the row, its number the
    count."""
    matrix = np.asarray(counts, dtype=np.float64)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    with _styled():
        figure, axes = _axes(WIDTH)
        axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
        axes.set_xlabel("taken for")
        axes.set_ylabel("true class")
        few = len(class_names) <= MOST_NAMES
        places = range(len(class_names)) if few else range(0, len(class_names), math.ceil(len(class_names) / 20))
        names = [_short(class_names[i], 14) for i in places]
        upright = max(map(len, names)) > 3
        axes.set_xticks(list(places), names, rotation=90 if upright else 0)
        axes.set_yticks(list(places), names)
        axes.spines[:].set_visible(False)
        if few:
            size = max(5.0, min(9.0, 70 / len(class_names)))
            for (row, column), count in np.ndenumerate(matrix):
                colour = "#000000" if shares[row, column] > 0.55 else "#ffffff"
                axes.text(column, row, f"{count:g}", ha="center", va="center", fontsize=size, color=colour)
        return _svg(figure)


def draw_class_rates(rates: Sequence[dict[str, Any]]) -> str:
    """Draws accuracy and precision of each class, the worst class on top."""
    rows = sorted(rates, key=lambda row: 2.0 if row["accuracy"] is None else row["accuracy"])[:MOST_ROWS]
    with _styled():
        figure, axes = _axes(0.9 + 0.24 * len(rows))
        for y, row in enumerate(rows):
            there = [row[name] for name in ("accuracy", "precision") if row[name] is not None]
            if len(there) == 2:
                axes.plot(there, [y, y], color=FAINT, linewidth=1, zorder=1)
            if row["precision"] is not None:
                axes.plot(row["precision"], y, "D", color=REAL, markersize=6, fillstyle="none", zorder=2)
            if row["accuracy"] is not None:
                axes.plot(row["accuracy"], y, "o", color=SYNTHETIC, markersize=6, zorder=3)
            words = "no real image" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
            axes.text(1.02, y, words, va="center", transform=axes.get_yaxis_transform())
        axes.set_yticks(range(len(rows)), [_short(row["class"], 24) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(
            min([0.5, *(r[k] for r in rows for k in ("accuracy", "precision") if r[k] is not None)]) - 0.02, 1.01
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g}%")
        _key(axes, [("● accuracy (number at the right)", SYNTHETIC), ("◇ precision", REAL)])
        return _svg(figure)


def draw_embedding(points: np.ndarray, num_real: int) -> str:
    """Draws t-SNE points `[n, 2]`; the first `num_real` are real images, the others synthetic."""
    with _styled():
        figure, axes = _axes(4.4)
        axes.plot(*points[:num_real].T, "o", color=REAL, markersize=2.6, alpha=0.55, markeredgewidth=0)
        axes.plot(*points[num_real:].T, "x", color=SYNTHETIC, markersize=2.8, alpha=0.7, markeredgewidth=0.7)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        _key(axes, [("● real", REAL), ("× synthetic", SYNTHETIC)])
        return _svg(figure)


def draw_sizes(curves: dict[str, list[tuple[int, float]]]) -> str:
    """Draws accuracy against the number of synthetic images, with a labelled line for each classifier."""
    styles = [("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."), ("v", "-"), ("P", "--")]
    with _styled():
        figure, axes = _axes(3.2)
        ends = []
        for i, (name, curve) in enumerate(curves.items()):
            marker, line = styles[i % len(styles)]
            sizes, values = zip(*sorted(curve), strict=True)
            axes.plot(sizes, values, line, marker=marker, color=(SYNTHETIC, REAL, INK)[i % 3], markersize=5)
            ends.append((values[-1], f"{_short(name, 14)} {values[-1]:.1%}", sizes[-1]))
        axes.set_xscale("log")
        sizes_all = sorted({size for curve in curves.values() for size, _ in curve})
        axes.set_xticks(sizes_all, [f"{size:,}" for size in sizes_all])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g}%")
        low, high = axes.get_ylim()
        place = -math.inf
        for value, words, size in sorted(ends):
            place = max(value, place + 0.07 * (high - low))  # keeps names from overlapping
            axes.annotate(
                words, (size, place), xytext=(7, 0), textcoords="offset points", va="center", annotation_clip=False
            )
        axes.set_xlabel("synthetic images that it was trained on")
        axes.set_ylabel("accuracy on real test images")
        axes.grid(axis="y", color=FAINT, alpha=0.4)
        return _svg(figure)


def draw_class_distances(distances: dict[str, float], title: str) -> str:
    """Draws a bar for each class, the worst on top."""
    rows = sorted(distances.items(), key=lambda item: -item[1])[:MOST_ROWS]
    with _styled():
        figure, axes = _axes(0.9 + 0.24 * len(rows))
        axes.barh(range(len(rows)), [value for _, value in rows], height=0.65, color=SYNTHETIC)
        for y, (_, value) in enumerate(rows):
            words = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
            axes.annotate(words, (value, y), xytext=(4, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(rows)), [_short(name, 24) for name, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.margins(x=0.12)
        axes.set_xlabel(f"{title}; lower is better")
        return _svg(figure)


def draw_training_curve(points: Sequence[tuple[str, int | None, float]], title: str) -> str:
    """Draws a distance against the step of DP-SGD; stages of the warm-up are evenly spaced before step 0.

    Args:
        points (sequence of `tuple`): Name, step (`None` before step 0) and value of each point, in the order of the
            run.
    """
    early = sum(step is None for _, step, _ in points)
    last = max((step or 0 for _, step, _ in points), default=0) or early or 1
    places = [last * 0.25 * (i - early) if step is None else step for i, (_, step, _) in enumerate(points)]
    with _styled():
        figure, axes = _axes(3.4)
        axes.plot(places, [value for *_, value in points], "-o", color=SYNTHETIC, markersize=5)
        every = math.ceil(len(points) / 10)
        shown = {*range(0, len(points), every), len(points) - 1} | {
            i for i, (_, step, _) in enumerate(points) if not step
        }
        names = [f"{step:,}" if step else _short(name, 24) for name, step, _ in points]
        axes.set_xticks([places[i] for i in sorted(shown)], [names[i] for i in sorted(shown)], rotation=45, ha="right")
        for i in (0, len(points) - 1):
            axes.annotate(
                f"{points[i][2]:.3g}",
                (places[i], points[i][2]),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
            )
        axes.margins(x=0.07, y=0.15)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step of DP-SGD")
        axes.set_ylabel(_short(title, 34))
        axes.grid(axis="y", color=FAINT, alpha=0.4)
        return _svg(figure)


def draw_ranking(names: Sequence[str], synthetic: Sequence[float], real: Sequence[float], chosen: int) -> str:
    """Draws accuracies of the same models on held-out synthetic and on real images, in per cent, with a mark for each
    kind of model."""
    kinds = list(dict.fromkeys(name.split(",")[0] for name in names))
    with _styled():
        figure, axes = _axes(3.4)
        for i, kind in enumerate(kinds):
            which = [j for j, name in enumerate(names) if name.split(",")[0] == kind]
            places = [synthetic[j] for j in which], [real[j] for j in which]
            axes.plot(*places, MARKS[i % 3][1], color=COLOURS_OF_MARKS[i % 3], markersize=6)
        axes.plot(synthetic[chosen], real[chosen], "o", color=INK, markersize=13, fillstyle="none")
        axes.margins(0.1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{round(value, 6):g}%")
        axes.set_xlabel("accuracy on held-out synthetic images")
        axes.set_ylabel("accuracy on real test images")
        axes.grid(color=FAINT, alpha=0.4)
        words = [(f"{MARKS[i % 3][0]} {kind}", COLOURS_OF_MARKS[i % 3]) for i, kind in enumerate(kinds)]
        _key(axes, [*words, ("○ chosen on synthetic images", INK)])
        return _svg(figure)


def draw_domain(share: float, error: float, accuracy: float | None) -> str:
    """Draws the share of synthetic images that a discriminator classifies as private rather than public."""
    with _styled():
        figure, axes = _axes(1.3)
        axes.barh([0], [share], height=0.5, color=SYNTHETIC)
        axes.barh([0], [1 - share], left=[share], height=0.5, color=REAL)
        axes.errorbar([share], [0], xerr=[error], color=INK, capsize=4)
        axes.text(0, 0.42, f"taken for private: {share:.1%}", ha="left", va="bottom")
        axes.text(1, 0.42, f"for public: {1 - share:.1%}", ha="right", va="bottom")
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.4, 0.8)
        axes.set_yticks([])
        axes.xaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g}%")
        axes.spines["left"].set_visible(False)
        if accuracy is not None:
            axes.set_xlabel(f"it tells private from public images with an accuracy of {accuracy:.1%}")
        return _svg(figure)


@contextmanager
def _styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from"
        )  # because matplotlib measures with a font other than the reader's
        yield


def _axes(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    return figure, axes


def _key(axes: "Axes", entries: list[tuple[str, str]]) -> None:
    """Adds the meaning of the marks above the chart, in their colours."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    words: list[Any] = [TextArea(text, textprops={"color": colour}) for text, colour in entries]
    box = HPacker(children=words, pad=0, sep=14)
    axes.add_artist(AnchoredOffsetbox("lower left", child=box, pad=0, frameon=False, bbox_to_anchor=(0, 1.01),
                                      bbox_transform=axes.transAxes, borderpad=0))  # fmt: skip


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _svg(figure: "Figure") -> str:
    """Renders the chart as an `<svg>` element, without a file header."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in COLOURS.items():
        text = text.replace(colour, variable)
    return text
