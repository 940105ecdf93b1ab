# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The leaderboard: what each method reached, in a table and in pictures. No torch.

`leaderboard.json` has the places; `python benchmarks/rows.py docs` writes it from measured rows.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from .registry import METHODS


COLUMNS = (10.0, 1.0)  # epsilons of the table
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
CHART = "leaderboard.webp"
OF_CHART = "Accuracy against minutes of training, a panel for each data set and epsilon; the tables have the numbers."
ENTERED = "method not reviewed"
#: Status of methods whose published figures stand in no table.
UNSOUND = ("claim_refuted", "no_guarantee")


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
        minutes (`float`, *optional*): Minutes of one core for training; `None` where an entrant did not state them.
        status (`str`): What the receipts say of the proof.
        public (`str`): Public data and networks that the receipts name; empty: none.
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

    def __str__(self) -> str:
        return f"{self.accuracy:.1f}" if self.error is None else f"{self.accuracy:.1f} ({self.error:.1f})"


def read_leaderboard() -> list[Place]:
    """The places that come with the package."""
    found = json.loads(files(__package__).joinpath("leaderboard.json").read_text(encoding="utf-8"))
    return [Place(**each) for each in found]


def read_pictures() -> dict[str, tuple[str, bytes]]:
    """WebP pictures by their titles, each with what it shows in words."""
    shown = {"": (CHART, OF_CHART)} | {
        title: (f"leaderboard_{data}.webp", f"{title}: real images, and images of each method.")
        for data, title in TITLES.items()
    }
    return {title: (words, files(__package__).joinpath(name).read_bytes()) for title, (name, words) in shown.items()}


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
    heads = ["method", *(f"epsilon {epsilon:g}" for epsilon in COLUMNS), "minutes", "seeds", "public data", "proof"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (name, method), own in groups.items():
        cells = [str(own.get(epsilon, "")) for epsilon in COLUMNS]
        known = [place.minutes for place in own.values() if place.minutes is not None]
        stated = " stated" * (method is None)  # by an entrant
        minutes = f"{statistics.mean(known):.1f}{stated}" if len(known) == len(own) else "not stated"
        status = _each(own, "status").replace("_", " ") + f"; {ENTERED}" * (method is None)
        cells += [minutes, _each(own, "seeds"), _each(own, "public") or "none", status]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines) if groups else "No row yet."


def _each(own: dict[float, Place], what: str) -> str:
    """A field of the places of a method, once where all agree."""
    found = (str(getattr(own[epsilon], what)) for epsilon in COLUMNS if epsilon in own)
    return ", ".join(dict.fromkeys(found))


def refuted_table() -> str:
    """Markdown: methods whose published figures have no sound epsilon, and what shows it."""
    lines = ["| method | why | check |", "|---|---|---|"]
    for method in METHODS.values():
        if method.status in UNSOUND:
            check = f"`diffusers-dp methods {method.name}`" if method.computed else "cited"
            lines.append(f"| {method.title} | {method.note} | {check} |")
    return "\n".join(lines)


def _rank(own: dict[float, Place]) -> tuple[float, ...]:
    """Methods without a place in the first column come last."""
    return tuple(-own[epsilon].accuracy if epsilon in own else 0.0 for epsilon in COLUMNS)
