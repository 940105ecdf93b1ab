# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The leaderboard, from rows of `board.yaml` and of releases that others entered (`rows.py enter`): blocks of
docs/measured.md, and its picture."""

import hashlib
import io
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "leaderboard.png"
COLUMNS = (10.0, 1.0)  # epsilons of the table
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
ENTERED = "method not reviewed"
PREFIX, JUDGED = "board ", "judge "  # of names of cases: of the board, and of the same with a judge of labels
CORE = 100  # billions of operations a second in matrix products of the core whose minutes tables give
BESIDE = ("longer ", "equal ")  # of names of cases whose rows stand beside the table
BOARD = re.compile(r"(<!-- board (\w+) -->).*?(<!-- /board -->)", re.DOTALL)
HOURS = re.compile(r"(<!-- hours -->).*?(<!-- /hours -->)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """One method at one epsilon on one data set, the mean over its seeds.

    Args:
        name (`str`): Name in the table.
        method (`str`, *optional*): Name in `METHODS`; `None` of a release that somebody entered: whatever it is
            called, it is apart.
        data (`str`), epsilon (`float`): Data set and total epsilon.
        accuracy (`float`): Per cent of real test images that a small CNN gets right. It learned drawn images alone.
        error (`float`, *optional*): Standard error of the accuracy; `None` of one seed.
        seeds (`int`): Number of runs.
        minutes (`float`, *optional*): Minutes of one core for training, by `core_minutes`; `None` where an entrant
            did not state them.
        status (`str`): What the receipts say of the proof.
        public (`str`): Public data and networks that the receipts name; empty: none.
        soft (`float`, *optional*): Accuracy where a judge, with a part of the budget, labelled the draws softly;
            `None`: not measured.
    """

    name: str
    method: str | None
    data: str
    epsilon: float
    accuracy: float
    error: float | None
    seeds: int
    minutes: float | None
    status: str
    public: str = ""
    soft: float | None = None

    def __str__(self) -> str:
        return f"{self.accuracy:.1f}" if self.error is None else f"{self.accuracy:.1f} ({self.error:.1f})"


def places_in(rows: Sequence[dict[str, Any]]) -> list[Place]:
    """What each method reached, in the order of its first row."""
    plain, judged = (_groups(rows, prefix) for prefix in (PREFIX, JUDGED))
    return [_mean_place(*key, same, judged.get(key, ())) for key, same in plain.items()]


Key = tuple[str, str | None, str, float]  # name, method, data set, epsilon


def _groups(rows: Sequence[dict[str, Any]], prefix: str) -> dict[Key, list[dict[str, Any]]]:
    """Rows of test accuracies whose case begins so, by what they are of."""
    groups: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        if row["case"].startswith(prefix) and row["scored_on"] == "test":
            key = row["case"].removeprefix(prefix), row["method"], row["data"], row["epsilon"]
            groups.setdefault(key, []).append(row)
    return groups


def _mean_place(
    name: str, method: str | None, data: str, epsilon: float, rows: Sequence[dict[str, Any]],
    judged: Sequence[dict[str, Any]],
) -> Place:  # fmt: skip
    values = [100 * row["accuracy"]["cnn"] for row in rows]
    error = None if len(values) < 2 else round(statistics.stdev(values) / len(values) ** 0.5, 3)
    known = [core_minutes(row, "train") for row in rows if "train" in row["minutes"]]
    minutes = round(statistics.mean(known), 2) if len(known) == len(rows) else None
    said = ["; ".join(sorted({row[field] for row in rows} - {""})) for field in ("status", "public")]
    soft = [100 * row["accuracy_on_soft_labels"]["cnn"] for row in judged]
    return Place(
        name, method, data, epsilon, round(statistics.mean(values), 2), error, len(values), minutes, *said,
        soft=round(statistics.mean(soft), 2) if soft else None,
    )  # fmt: skip


def core_minutes(row: dict[str, Any], *stages: str) -> float:
    """Minutes of stages of a row, on a core of the speed `CORE` where the row says how fast its own was: rows of
    several machines compare. What an entrant stated stays."""
    gflops = CORE if row.get("entered") else row.get("machine", {}).get("gflops", CORE)
    return sum(row["minutes"].get(stage, 0.0) for stage in stages) * (gflops / CORE)


def pictured(rows: Sequence[dict[str, Any]], data: str) -> list[dict[str, Any]]:
    """Rows whose images the picture of a data set shows: first seeds, and the first release of each entrant, in the
    order of the table."""
    own = [row for row in rows if row["case"].startswith(PREFIX) and (row["scored_on"], row["data"]) == ("test", data)]
    first = [row for row in own if row.get("entered") or row["seed"] == 0]
    shown = list({(row["case"], row["epsilon"]): row for row in reversed(first)}.values())
    order = [name for name, _ in ranked(places_in(own), data)]
    return sorted(shown, key=lambda row: order.index(row["case"].removeprefix(PREFIX)))


def digest_of_rows(rows: Sequence[dict[str, Any]]) -> str:
    """A hash of what a picture shows, in whatever order."""
    shown = sorted([row["case"], row["epsilon"], row["receipt_sha256"]] for row in rows)
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def core_hours(rows: Sequence[dict[str, Any]]) -> str:
    """What rows of the leaderboard took in all: training, drawing and scoring, on one core each."""
    own = [row for row in rows if row["case"].startswith((PREFIX, *BESIDE)) and not row.get("entered")]
    hours = sum(sum(row["minutes"].values()) for row in own) / 60
    return f"All {len(own)} rows took {hours:.1f} hours of one core: training, verifying, drawing and scoring."


def with_board(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """A text with the generated blocks of the leaderboard."""
    places = places_in(rows)
    own = {found[2] for found in BOARD.finditer(text)}
    more = dict.fromkeys(place.data for place in places if place.data not in own)
    others = "\n\n".join(f"### {data}\n\n{leaderboard_table(places, data)}" for data in more)

    def table(found: re.Match[str]) -> str:
        inside = others or "None yet." if found[2] == "others" else leaderboard_table(places, found[2])
        return f"{found[1]}\n\n{inside}\n\n{found[3]}"

    text = BOARD.sub(table, text)
    return HOURS.sub(lambda found: f"{found[1]}\n\n{core_hours(rows)}\n\n{found[2]}", text)


def draw_board(rows: Sequence[dict[str, Any]]) -> None:
    """Writes the picture."""
    if (picture := leaderboard_picture(places_in(rows))) is not None:
        PICTURE.write_bytes(picture)


def ranked(places: Sequence[Place], data: str) -> dict[tuple[str, str | None], dict[float, Place]]:
    """The places on a data set by name and method, and by epsilon: the best at the first of `COLUMNS` first."""
    groups: dict[tuple[str, str | None], dict[float, Place]] = {}
    for place in places:
        if place.data == data:
            groups.setdefault((place.name, place.method), {})[place.epsilon] = place
    return dict(sorted(groups.items(), key=lambda each: _rank(each[1])))


def leaderboard_table(places: Sequence[Place], data: str) -> str:
    """Markdown: a line for each method, in the order of `ranked`."""
    groups = ranked(places, data)
    epsilons = [f"epsilon {epsilon:g}" for epsilon in COLUMNS]
    heads = ["method", *epsilons, "soft labels of a judge, 10 and 1", "minutes", "seeds", "public data", "proof"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (name, method), own in groups.items():
        cells = [str(own.get(epsilon, "")) for epsilon in COLUMNS]
        known = [place.minutes for place in own.values() if place.minutes is not None]
        stated = " stated" * (method is None)  # by an entrant
        minutes = f"{statistics.mean(known):.1f}{stated}" if len(known) == len(own) else "not stated"
        status = _each(own, "status").replace("_", " ") + f"; {ENTERED}" * (method is None)
        soft = [place.soft for epsilon in COLUMNS if (place := own.get(epsilon)) is not None]
        judged = ", ".join("-" if each is None else f"{each:.1f}" for each in soft) if any(soft) else ""
        cells += [judged, minutes, _each(own, "seeds"), _each(own, "public") or "none", status]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines) if groups else "No row yet."


def _each(own: dict[float, Place], what: str) -> str:
    """A field of the places of a method, once where all agree."""
    found = (str(getattr(own[epsilon], what)) for epsilon in COLUMNS if epsilon in own)
    return ", ".join(dict.fromkeys(found))


def _rank(own: dict[float, Place]) -> tuple[float, ...]:
    """Methods without a place in the first column come last."""
    return tuple(-own[epsilon].accuracy if epsilon in own else 0.0 for epsilon in COLUMNS)


def leaderboard_picture(places: Sequence[Place]) -> bytes | None:
    """Accuracy against minutes of training as a PNG, a panel for each data set and epsilon that has places with
    minutes; `None` without such places."""
    from matplotlib.figure import Figure

    panels = [
        (title, epsilon, shown) for data, title in TITLES.items() for epsilon in COLUMNS
        if (shown := [
            (each, each.minutes) for each in places if (each.data, each.epsilon) == (data, epsilon) and each.minutes
        ])
    ]  # fmt: skip
    if not panels:
        return None
    colours = {name: f"C{number % 10}" for number, name in enumerate(dict.fromkeys(place.name for place in places))}
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(5.2 * across, 4.2 * down), layout="constrained")
    grid = figure.subplots(down, across, sharex=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, (title, epsilon, shown) in zip(grid.flat, panels, strict=False):
        for place, minutes in shown:
            axes.errorbar(
                minutes, place.accuracy, yerr=place.error, fmt="o", capsize=3, color=colours[place.name],
                fillstyle="none" if place.method is None else "full",
            )  # fmt: skip
        axes.set(title=f"{title}, epsilon {epsilon:g}", xlabel="minutes of one core", xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("accuracy on test images, %")
        axes.margins(x=0.4, y=0.1)
        axes.grid(alpha=0.3)
        axes.tick_params(labelbottom=True)  # in each row of panels
    figure.draw_without_rendering()  # only now are the places of points on the sheet known
    for axes, (_, _, shown) in zip(grid.flat, panels, strict=False):
        _name_points(axes, shown)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, metadata={"Software": None, "Description": digest_of_places(places)})
    return drawn.getvalue()


def digest_of_places(places: Sequence[Place]) -> str:
    """A hash that a picture keeps, so that a test can tell when it is stale."""
    return hashlib.sha256(repr(list(places)).encode()).hexdigest()


def _name_points(axes: "Axes", shown: Sequence[tuple[Place, float]]) -> None:
    """Writes names beside points, as near as points and the names before them let."""
    points = [axes.transData.transform((minutes, place.accuracy)) * 72 / axes.figure.dpi for place, minutes in shown]
    taken = [(x - 3, x + 3, y) for x, y in points]
    for (place, minutes), (x, y) in zip(shown, points, strict=True):
        width, free = 4.6 * len(place.name), []
        for side, left in (("left", x + 5), ("right", x - 5 - width)):
            near = [height - y for start, end, height in taken if left < end and start < left + width]
            free += [(up, side, left) for up in range(-300, 301) if all(abs(up - other) >= 8 for other in near)]
        up, side, left = min(free, key=lambda each: abs(each[0]))  # to the right of its point, if both are as near
        taken.append((left, left + width, y + up))
        axes.annotate(
            place.name, (minutes, place.accuracy), xytext=(5 if side == "left" else -5, up),
            textcoords="offset points", ha=side, va="center", fontsize=8,
        ).set_in_layout(False)  # fmt: skip
