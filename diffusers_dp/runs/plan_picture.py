# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A picture of a plan: the budget by stage, and epsilon against the steps of DP-SGD. Needs matplotlib, loads no
torch."""

import io
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError, install
from .plan import Plan
from .plan_table import TITLES


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours are told apart by most eyes, and in print: of the queries, in their order, and of what every plan may have.
_OF_QUERIES = ("#4477aa", "#ccbb44", "#66ccee", "#aa3377")
_COLOURS = {"evaluation_reserve": "#bbbbbb", "dp_sgd": "#228833", "teachers": "#228833", "restart_slack": "#bbccee"}
_MOST_STAGES = 5  # of one plan
# The curve's points, as parts of the planned steps: closer to each other at its beginning, where it is steep.
_PARTS = [(part / 8) ** 2 for part in range(11)]


def check_picture(path: Path) -> None:
    """Refuses what could only fail after the accounting.

    Raises:
        UsageError: matplotlib is not installed, or the path does not end in `.png` or names no place in a folder.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError(f"--picture needs matplotlib: {install('plot')}, or leave it out.") from None
    if path.suffix.lower() != ".png":
        raise UsageError(f"--picture {path} is no PNG; give a name that ends in .png.")
    if path.exists() and not path.is_file() or not path.parent.is_dir():  # to write into a pipe waits
        raise UsageError(f"--picture {path} is no place for a file; give a name in a folder that exists.")


def draw_plan(plan: Plan, path: Path) -> None:
    """Draws the plan into a PNG file.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.write_bytes(picture_of(plan))
    except OSError as error:
        raise UsageError(f"--picture {path} cannot be written ({error.strerror}); give another file.") from None


def picture_of(plan: Plan, *, stacked: bool = False) -> bytes:
    """The plan as a PNG of 1,500 x 600 pixels; `stacked`, of 750 pixels' width, as on a phone."""
    from matplotlib.figure import Figure

    number = 1 if plan.step is None else 2
    columns, rows, size = (1, number, (5, 3.3 * number)) if stacked else (number, 1, (10, 4))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    shares, *curve = figure.subplots(rows, columns, squeeze=False).flat
    _draw_shares(shares, plan)
    for axes in curve:
        _draw_curve(axes, plan)
    budget, space = plan.ledger, "\n" if stacked else " "
    figure.suptitle(
        f"Total epsilon {plan.epsilon:.4g} by {budget.accountant.upper()} at delta {budget.target_delta:.2e},"
        f"{space}for one of {budget.num_images:,} {plan.unit}s zeroed out",
        fontsize=11,
    )
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_shares(axes: "Axes", plan: Plan) -> None:
    """A bar for each stage, in the order of asking."""
    shares = plan.ledger.budget_shares()
    titles = TITLES | {query.name: query.title for query in plan.queries}
    labels = []
    for name in shares:
        row = plan.rows[name]
        steps = "1 step" if row.steps == 1 else f"{row.steps:,} steps"
        title = titles.get(name, name.replace("_", " "))  # of a plan that is read from a receipt
        labels.append(f"{title}\nnoise multiplier {row.noise_multiplier:.4g}, {steps}")
    colours = [_COLOURS.get(name, colour) for name, colour in zip(shares, itertools.cycle(_OF_QUERIES), strict=False)]
    height = 0.8 * len(labels) / _MOST_STAGES  # bars as thick however many there are
    bars = axes.barh(range(len(labels)), list(shares.values()), height=height, color=colours)
    axes.bar_label(bars, [f"{share:.1%}" for share in shares.values()], padding=4)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlim=(0, 1.15), xticks=[0, 0.25, 0.5, 0.75, 1])  # the first on top
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("share of the composed RDP")
    axes.set_title("Budget by stage", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_curve(axes: "Axes", plan: Plan) -> None:
    """Epsilon if DP-SGD stopped earlier or went on, with the noise as planned."""
    planned, target = plan.step, plan.ledger.target_epsilon
    assert planned is not None
    steps = sorted({round(planned.steps * part) for part in _PARTS})
    for accountant, style in (("pld", "-"), ("rdp", "--")):
        epsilons = plan.epsilon_against_steps(steps, accountant)
        axes.plot(steps, epsilons, style, color="#4477aa", label=f"epsilon by {accountant.upper()}")
    axes.axhline(target, color="#aa3377", linewidth=1, label=f"target epsilon {target:g}")
    slack = plan.rows["restart_slack"].steps if "restart_slack" in plan.rows else 0
    axes.plot(
        [planned.steps + slack], [plan.epsilon], "o", color="black",
        label=f"planned: {planned.steps + slack:,} steps, by {plan.ledger.accountant.upper()}",
    )  # fmt: skip
    label = f"steps (noise multiplier {planned.noise_multiplier:.4g})"
    axes.set(xlim=(0, None), ylim=(0, None), xlabel=label, ylabel="total epsilon")
    axes.set_title("Epsilon against steps", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
