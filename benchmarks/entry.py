# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases that have no case: those that others enter in the leaderboard, and ones that are scored again."""

import argparse
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from board import BESIDE, PREFIX
from cases import Case, read_cases
from kept import RECEIPT, TOLERANCE, digest_of, folder_of, keep_receipt
from runner import Runner, Stopped, claimed_epsilon, commit, minutes_in, read_rows, usable_cores

from diffusers_dp.commands.methods import letters
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.verify import known_faults, priced_inputs, read_receipt, settled_digest, verify


def entered(args: argparse.Namespace, runner: Runner) -> dict[str, Any]:
    """The row of a release that somebody else made: its epsilon is recomputed, and at most as many of its images are
    scored as a case draws.

    Raises:
        ValueError: The name is another method's, or the minutes are not above 0.
        Stopped: It has its row, does not verify, costs more than it is entered for, is of another number of images
            than the data set, or cannot be drawn from, or the data set cannot be scored on.
    """
    rows = [row for row in read_rows(runner.results) if row.get("entered")]
    ours = {case.name.removeprefix(PREFIX) for case in read_cases(Path(__file__).with_name("board.yaml"))}
    ours |= {title for method in METHODS.values() for title in (method.name, method.title)}
    entrants = set() if args.another_seed else {row["case"].removeprefix(PREFIX) for row in rows}
    if args.name.lower().startswith(BESIDE) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 .,+()-]*", args.name):
        raise ValueError("--name: give a name of letters and digits, with a letter or digit first")
    if letters(args.name) in set(map(letters, ours | entrants)):
        own = ", or --another_seed for your own method" * (args.name in entrants - ours)
        raise ValueError(f"--name: a method is called {args.name} already: give another name{own}")
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise ValueError("--minutes: give a number above 0, or leave it out")
    receipt, problems = verify(args.release)
    if problems:
        raise Stopped(f"{args.release} does not verify: {problems[0]}")
    if fault := next(known_faults(receipt), ""):
        raise Stopped(f"a known fault may touch {args.release}: {fault}")
    digest = digest_of(args.release / RECEIPT)
    (data,) = runner.places
    for row in rows:  # an evaluation or an audit changes a receipt, and not what is settled in it
        kept = read_receipt(folder_of(row["receipt_sha256"], runner.results.parent))
        if row["epsilon"] == args.epsilon and settled_digest(kept) == settled_digest(receipt):
            raise Stopped(f"{args.release} has its row already: {row['case'].removeprefix(PREFIX)} on {row['data']}")
    number = runner.check_place(data)
    if dear := too_dear(receipt, args.epsilon, number):
        raise Stopped(dear)
    trained_on = receipt["public_facts"].get("num_images", 0)
    if not 0.9 <= trained_on / number <= 1.1:  # a declared number may be rounded
        raise Stopped(f"--data {data}: it has {number:,} training images, and the receipt says {trained_on:,}")
    case = Case(f"{PREFIX}{args.name}", "", data, args.epsilon, args.seed, draw=tuple(args.draw.split()))
    key = f"entered {digest[:12]} {case.key}"
    folder = runner.output_dir / key.replace(" ", "_")
    row = runner.row_of(args.release.resolve(), case, folder / "drawn", folder / "minutes.json", usable_cores()[0])
    keep_receipt(args.release, runner.results.parent)
    times = minutes_in(folder / "minutes.json") | ({} if args.minutes is None else {"train": args.minutes})
    return row | {"entered": True, "key": key, "method": None, "commit": commit(), "minutes": times}


def too_dear(receipt: dict[str, Any], epsilon: float, number: int) -> str:
    """One sentence where a receipt costs more than `epsilon` at the default delta of `number` training images; else an
    empty string. All releases of its data set count, and what it started from."""
    most = 1 / (number * math.log(number))
    together = receipt["dataset"]["epsilon_of_all_releases"]["pld"] if receipt.get("dataset") else 0.0
    spent = max(claimed_epsilon(receipt), together) + sum(origin["epsilon"] for origin in priced_inputs(receipt))
    if spent <= epsilon + TOLERANCE and receipt["delta"] <= most * (1 + TOLERANCE):
        return ""
    return (
        f"its epsilon is {spent:.4g} at delta {receipt['delta']:.6g}, and it was entered for {epsilon:g} at a delta "
        f"of at most {most:.6g}, which is 1/(N ln N) of {number:,} training images"
    )


def redrawn(release: Path, num_images: int, draw: tuple[str, ...], runner: Runner) -> dict[str, Any]:
    """A row of other draws from the release of a row. Its images stay in `runner.output_dir`, where the same command
    finishes an interrupted drawing.

    Raises:
        ValueError: The folder is no release of a row, or its data set has no place.
        Stopped: A command failed.
    """
    digest = digest_of(release / RECEIPT)
    old = next((row for row in read_rows(runner.results) if row["receipt_sha256"] == digest), None)
    if old is None or old["data"] not in runner.places:
        raise ValueError(f"give the release of a row in {runner.results}, and --data of the images it learned from")
    case = Case(
        old["case"], old["method"], old["data"], old["epsilon"], old["seed"], old["recipe"],
        tuple(old["flags"].split()), num_images, draw,
    )  # fmt: skip
    folder = runner.folder_of(case)
    row = runner.row_of(release.resolve(), case, folder / f"drawn_{case.key}", folder / "minutes.json", None)
    return row | {"commit": commit(), "minutes": minutes_in(folder / "minutes.json"), "settings": old["settings"]}


def rescored(release: Path, runner: Runner) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row of a release on test images, and a new one: verified, drawn and scored again.

    Raises:
        ValueError: The folder is no release of a row, or a data set has no place.
        Stopped: A command failed.
    """
    if not (release / RECEIPT).exists():
        raise ValueError(f"{release} is no release: give the folder of one, such as RUN/release")
    digest = digest_of(release / RECEIPT)
    known = [
        row for row in read_rows(runner.results) if row.get("receipt_sha256") == digest and row["scored_on"] == "test"
    ]
    if not known:
        raise ValueError(f"no row has the receipt of {release}: give the release of a row")
    for old in known:
        if old["data"] not in runner.places:
            raise ValueError(f"give --data {old['data']}=PLACE")
        flags = {part: tuple(old.get(part, "").split()) for part in ("flags", "draw")}
        case = Case(
            old["case"], old["method"] or "", old["data"], old["epsilon"], old["seed"], old["recipe"],
            num_images=old["num_drawn"], **flags,
        )  # fmt: skip
        folder = runner.output_dir / f"rescored_{old['key'].replace(' ', '_')}"
        shutil.rmtree(folder, ignore_errors=True)
        again = replace(runner, most_images=old["num_drawn"])
        yield old, again.row_of(release.resolve(), case, folder / "drawn", folder / "minutes.json", usable_cores()[0])
