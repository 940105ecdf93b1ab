# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The leaderboard, from rows of `board.yaml` and of releases that others entered (`rows.py enter`): blocks of
docs/leaderboard.md, its picture, and `diffusers_dp/methods/leaderboard.json`, which `diffusers-dp app` shows, too."""

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diffusers_dp.methods.leaderboard import Place, leaderboard_picture, leaderboard_table
from diffusers_dp.methods.registry import METHODS


ROOT = Path(__file__).parents[1]
FILE = ROOT / "diffusers_dp" / "methods" / "leaderboard.json"
PICTURE = ROOT / "docs" / "images" / "leaderboard.png"
PREFIX = "board "  # of names of cases
LONGER = "longer "  # of names of cases whose rows stand beside the table
BOARD = re.compile(r"(<!-- board (\w+) -->).*?(<!-- /board -->)", re.DOTALL)
REFUTED = re.compile(r"(<!-- refuted -->).*?(<!-- /refuted -->)", re.DOTALL)
#: Status of methods whose published figures stand in no table.
UNSOUND = ("claim_refuted", "no_guarantee")


def places_in(rows: Sequence[dict[str, Any]]) -> list[Place]:
    """What each method reached, in the order of its first row."""
    groups: dict[tuple[str, str | None, str, float], list[dict[str, Any]]] = {}
    for row in rows:
        if row["case"].startswith(PREFIX) and row["scored_on"] == "test":
            name = row["case"].removeprefix(PREFIX)
            groups.setdefault((name, row["method"], row["data"], row["epsilon"]), []).append(row)
    return [_mean_place(*key, same) for key, same in groups.items()]


def _mean_place(name: str, method: str | None, data: str, epsilon: float, rows: Sequence[dict[str, Any]]) -> Place:
    values = [100 * row["accuracy"]["cnn"] for row in rows]
    error = None if len(values) < 2 else round(statistics.stdev(values) / len(values) ** 0.5, 3)
    known = [row["minutes"]["train"] for row in rows if "train" in row["minutes"]]
    minutes = round(statistics.mean(known), 2) if len(known) == len(rows) else None
    return Place(name, method, data, epsilon, round(statistics.mean(values), 2), error, len(values), minutes)


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
    places = places_in(rows)
    text = BOARD.sub(lambda found: f"{found[1]}\n\n{leaderboard_table(places, found[2])}\n\n{found[3]}", text)
    return REFUTED.sub(lambda found: f"{found[1]}\n\n{refuted_table()}\n\n{found[2]}", text)


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """The file of the places, a line for each."""
    return "[\n" + ",\n".join(json.dumps(asdict(place)) for place in places_in(rows)) + "\n]\n"


def write_board(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Writes the picture and the file. Returns the name of the file if it changed."""
    if (picture := leaderboard_picture(places_in(rows))) is not None:
        PICTURE.write_bytes(picture)
    new = text_of(rows)
    if not FILE.exists() or FILE.read_text(encoding="utf-8") != new:
        FILE.write_text(new, encoding="utf-8")
        yield str(FILE.relative_to(ROOT))
