# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The leaderboard, from rows of `board.yaml` and of releases that others entered (`rows.py enter`): blocks of
docs/leaderboard.md, its picture, and `diffusers_dp/methods/leaderboard.json`, which `diffusers-dp app` shows, too."""

import hashlib
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diffusers_dp.methods.leaderboard import Place, leaderboard_picture, leaderboard_table, ranked, refuted_table


ROOT = Path(__file__).parents[1]
FILE = ROOT / "diffusers_dp" / "methods" / "leaderboard.json"
PICTURE = ROOT / "docs" / "images" / "leaderboard.png"
PREFIX = "board "  # of names of cases
BESIDE = ("longer ", "equal ")  # of names of cases whose rows stand beside the table
BOARD = re.compile(r"(<!-- board (\w+) -->).*?(<!-- /board -->)", re.DOTALL)
HOURS = re.compile(r"(<!-- hours -->).*?(<!-- /hours -->)", re.DOTALL)
REFUTED = re.compile(r"(<!-- refuted -->).*?(<!-- /refuted -->)", re.DOTALL)


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
    said = ["; ".join(sorted({row[field] for row in rows} - {""})) for field in ("status", "public")]
    return Place(name, method, data, epsilon, round(statistics.mean(values), 2), error, len(values), minutes, *said)


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
    text = HOURS.sub(lambda found: f"{found[1]}\n\n{core_hours(rows)}\n\n{found[2]}", text)
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
