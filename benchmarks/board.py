"""The leaderboard: tables and picture of docs/leaderboard.md, from rows of `board.yaml` and of releases that others
entered (`rows.py enter`)."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers_dp.methods.registry import METHODS


PREFIX = "board "  # of names of cases
BOARD = re.compile(r"(<!-- board (\w+) -->).*?(<!-- /board -->)", re.DOTALL)
REFUTED = re.compile(r"(<!-- refuted -->).*?(<!-- /refuted -->)", re.DOTALL)
EPSILONS = (10.0, 1.0)
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
ENTERED = "receipt recomputed; its method was not looked at"
#: Status of methods whose published figures stand in no table.
UNSOUND = ("claim_refuted", "no_guarantee")


@dataclass(frozen=True)
class Place:
    """One method at one epsilon on one data set.

    Args:
        accuracy (`float`): Mean over seeds, in per cent, of the small CNN.
        error (`float`, *optional*): Its standard error; `None` of one seed.
        seeds (`int`): Number of seeds.
        minutes (`float`, *optional*): Mean minutes of one core for training; `None` where whoever entered it did not
            say.
    """

    accuracy: float
    error: float | None
    seeds: int
    minutes: float | None

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> "Place":
        values = [100 * row["accuracy"]["cnn"] for row in rows]
        error = None if len(values) < 2 else statistics.stdev(values) / len(values) ** 0.5
        minutes = [row["minutes"].get("train") for row in rows]
        known = None if None in minutes else statistics.mean(minutes)
        return cls(statistics.mean(values), error, len(values), known)

    def __str__(self) -> str:
        return f"{self.accuracy:.1f}" if self.error is None else f"{self.accuracy:.1f} ({self.error:.1f})"


def places(rows: Sequence[dict[str, Any]], data: str) -> dict[tuple[str, str | None], dict[float, Place]]:
    """What each method reached by epsilon on a data set, the best at epsilon 10 first. The keys are its name in the
    table, and its name in `METHODS`, `None` of a release that somebody entered: whatever it is called, it is apart."""
    groups: dict[tuple[str, str | None], dict[float, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["case"].startswith(PREFIX) and row["data"] == data and row["scored_on"] == "test":
            name = row["case"].removeprefix(PREFIX), row["method"]
            groups.setdefault(name, {}).setdefault(row["epsilon"], []).append(row)
    found = {name: {eps: Place.of(same) for eps, same in own.items()} for name, own in groups.items()}
    return dict(sorted(found.items(), key=lambda each: -max(each[1].items())[1].accuracy))


def board_table(rows: Sequence[dict[str, Any]], data: str) -> str:
    """Markdown: a line for each method."""
    lines = ["| method | epsilon 10 | epsilon 1 | minutes | seeds | proof |", "|---|---|---|---|---|---|"]
    for (name, method), own in places(rows, data).items():
        cells = [str(own.get(epsilon, "")) for epsilon in EPSILONS]
        minutes = [place.minutes for place in own.values()]
        shown = "not stated" if None in minutes else f"{statistics.mean(filter(None, minutes)):.1f}"
        seeds = max(place.seeds for place in own.values())
        status = ENTERED if method is None else METHODS[method].status.replace("_", " ")
        lines.append(" | ".join([f"| {name}", *cells, shown, str(seeds), f"{status} |"]))
    return "\n".join(lines) if len(lines) > 2 else "No row yet."


def refuted_table() -> str:
    """Markdown: methods whose published figures have no sound epsilon, and what shows it."""
    lines = ["| method | why | check |", "|---|---|---|"]
    lines += [
        f"| {method.title} | {method.note} | `diffusers-dp methods {method.name}` |"
        for method in METHODS.values() if method.status in UNSOUND
    ]  # fmt: skip
    return "\n".join(lines)


def with_board(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """A text with the generated blocks of the leaderboard."""
    text = BOARD.sub(lambda found: f"{found[1]}\n\n{board_table(rows, found[2])}\n\n{found[3]}", text)
    return REFUTED.sub(lambda found: f"{found[1]}\n\n{refuted_table()}\n\n{found[2]}", text)


def draw_board(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws accuracy against minutes of training, a panel for each data set and epsilon. Nothing without rows."""
    from matplotlib.figure import Figure

    panels = [(data, epsilon) for data in DATA for epsilon in EPSILONS]
    shown = {panel: [(name, own[panel[1]]) for (name, _), own in places(rows, panel[0]).items() if panel[1] in own]
             for panel in panels}  # fmt: skip
    panels = [panel for panel in panels if any(place.minutes for _, place in shown[panel])]
    if not panels:
        return
    figure = Figure(figsize=(4.6 * min(2, len(panels)), 3.6 * -(-len(panels) // 2)), layout="constrained")
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(-(-len(panels) // 2), min(2, len(panels)), number)
        for name, place in shown[panel]:
            if place.minutes:
                axes.errorbar(place.minutes, place.accuracy, yerr=place.error, fmt="o", capsize=3)
                axes.annotate(
                    name, (place.minutes, place.accuracy), xytext=(5, 4), textcoords="offset points", fontsize=8
                )
        axes.set(title=f"{DATA[panel[0]]}, epsilon {panel[1]:g}", xlabel="minutes of one core", xscale="log")
        axes.margins(x=0.25)
        axes.grid(alpha=0.3)
        axes.set_ylabel("accuracy on test images, %")
    figure.savefig(path, dpi=110, metadata={"Software": None})
