"""One command for every figure of the docs: trains, verifies, draws and scores a list of cases, a row for each.

    python benchmarks/rows.py run benchmarks/cases.yaml --data mnist=path/to/mnist --data cifar10=path/to/cifar10
    python benchmarks/rows.py run benchmarks/cases.yaml --data mnist=path/to/mnist --only dpdm --jobs 2
    python benchmarks/rows.py bounds --data mnist=path/to/mnist
    python benchmarks/rows.py table
    python benchmarks/rows.py enter path/to/release --name "My method" --epsilon 10 --data mnist=path/to/mnist
    python benchmarks/rows.py check               # recomputes epsilon of the receipts in benchmarks/results/receipts
    python benchmarks/rows.py rescore path/to/release --data mnist=path/to/mnist
    python benchmarks/rows.py redraw path/to/release --num_images 60000 --data mnist=path/to/mnist
    python benchmarks/rows.py releases path/to/releases --data mnist=path/to/mnist
    python benchmarks/rows.py docs                # writes what is made of rows again: docs, evidence, leaderboard

A case names a method, a recipe, a data set, epsilons, seeds, further training flags, and the minutes that it may take.
Each case runs in processes of its own on one core: training, `diffusers-dp verify`, `diffusers-dp sample`, and
`benchmarks/scorer.py`, which see only what is in `release/`. A release of images is scored as it is. `--jobs 2` runs
two cases side by side. A row is written to `benchmarks/results/rows.jsonl` when its case is done, and a second call
runs the cases that have no row: an interrupted training resumes. All first seeds come first, so that a call that is
stopped at any time still compares.

A sweep is a case with `vary`, flags with lists of values, and becomes a case for each point of the grid. Cases that
differ in how they draw images share one training. `{NAME}` in flags is the place that `--data NAME=PLACE`
gives.

Settings are chosen with `--scored_on train`, on training images; such rows stand in no table of test accuracies.
Numbers measured on real images are private where these images are; MNIST's and CIFAR-10's are public.
"""

import argparse
import functools
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from board import COLUMNS, PREFIX, TITLES, digest_of_rows, draw_board, pictured
from cases import Case, data_of, read_cases
from entry import entered, redrawn, rescored
from evidence import write_evidence
from figures import ROOT, draw_few_images, table, write_docs
from kept import RECEIPTS, SHOWN, check_kept, draw_methods, folders, images_of
from runner import HERE, Runner, Stopped, commit, machine, read_rows, usable_cores, write_row
from tqdm.auto import tqdm

from diffusers_dp.verify import Unreadable


RESULTS = HERE / "results" / "rows.jsonl"
EXAMPLES = RESULTS.with_name("examples.jsonl")  # of the releases in results/releases, by the cases of the leaderboard


def left_of(cases: Iterable[Case], scored_on: str, path: Path) -> list[Case]:
    """Cases without a row, in their order."""
    done = {(row["key"], row["scored_on"]) for row in read_rows(path)}
    return [case for case in cases if (case.key, scored_on) not in done]


def run(cases: list[Case], runner: Runner, jobs: int) -> int:
    """Makes the row of each case. Returns 1 if a case ended without a row."""

    def written(row: dict[str, Any]) -> str:
        write_row(row, runner.results)
        return line_of(row)

    return side_by_side(cases, runner.row, written, runner, jobs)


def side_by_side(
    cases: list[Case], make: Callable[[Case, int | None], Any], say: Callable[[Any], str], runner: Runner, jobs: int
) -> int:
    """Calls `make` with each case and its core, `jobs` at a time, and prints what `say` says of each result. Returns 1
    if a case was stopped."""
    cores: queue.Queue[int | None] = queue.Queue()
    usable = usable_cores()
    for place in range(jobs):
        cores.put(usable[place % len(usable)])

    def work(case: Case) -> Any:
        core = cores.get()
        try:
            return make(case, core)
        finally:
            cores.put(core)

    failed = 0
    with ThreadPoolExecutor(jobs) as pool, tqdm(total=len(cases), desc="Cases", unit="case") as bar:
        asked = {pool.submit(work, case): case for case in cases}
        try:
            for future in as_completed(asked):
                try:
                    bar.write(say(future.result()))
                except Stopped as error:
                    failed = 1
                    bar.write(f"{asked[future].name}: {error}.")
                bar.update()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise
    return failed


def line_of(row: dict[str, Any]) -> str:
    scores = " ".join(f"{name} {100 * value:.2f}" for name, value in row.get("accuracy", {}).items())
    epsilon = "" if row["epsilon"] is None else f" epsilon {row['epsilon']:g}"
    return f"{row['case']} {row['data']}{epsilon} seed {row['seed']}: {scores} frechet {row['frechet']}"


def bounds(places: dict[str, str], sizes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Rows of the scorer itself: real images in place of drawn ones, and labels by chance."""
    import numpy as np
    import scorer

    for name, place in places.items():
        real, whole = scorer.real_images(place, "test"), scorer.read(place, "train")
        rest = np.arange(len(real[0]), len(whole))  # the others measure distances
        guessed = np.random.default_rng(0).permutation(np.asarray(whole.labels))
        chance = replace(whole, labels=guessed)
        for case, images, size in [("chance", chance, min(sizes)), *(("real images", whole, size) for size in sizes)]:
            drawn = images.subset(rest[:size])
            numbers, minutes = scorer.processor_minutes(functools.partial(scorer.score, drawn, *real))
            yield {
                "key": f"{case} {name} {len(drawn)}", "case": case, "method": None, "recipe": None, "data": name,
                "epsilon": None, "seed": 0, "flags": "", "scored_on": "test", **numbers,
                "minutes": {"score": minutes}, "commit": commit(), "machine": machine(),
            }  # fmt: skip


def draw_images(rows: Sequence[dict[str, Any]]) -> None:
    """A picture for each public data set of the leaderboard: real images, and images of all methods."""
    results = RESULTS.parent
    for data in TITLES:
        if not (shown := pictured(rows, data)):
            continue
        columns = {f"epsilon {each:g}": {"real images": results / SHOWN / f"{data}.png"} for each in COLUMNS}
        for row in shown:
            images = images_of(row["receipt_sha256"], results)
            columns[f"epsilon {row['epsilon']:g}"][row["case"].removeprefix(PREFIX)] = images
        draw_methods(columns, ROOT / "docs" / "images" / f"leaderboard_{data}.png", shows=digest_of_rows(shown))


def places_of(pairs: Iterable[str]) -> dict[str, str]:
    if not all(re.fullmatch(r"\w+=.+", pair) for pair in pairs):
        raise ValueError("--data takes NAME=PLACE, with a name of letters, digits and underscores")
    found = dict(pair.split("=", 1) for pair in pairs)
    return {name: str(Path(place).resolve()) if Path(place).exists() else place for name, place in found.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    runs = parts.add_parser("run", help="Make the rows that are missing.")
    runs.add_argument("cases", type=Path, help="YAML file of cases.")
    runs.add_argument("--only", default="", help="Only cases whose name contains this.")
    runs.add_argument("--jobs", type=int, default=1, help="Cases side by side, each on one core.")
    runs.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the runs.")
    runs.add_argument("--scored_on", choices=("test", "train"), default="test", help="Choose settings on train.")
    runs.add_argument("--results", type=Path, help="File of the rows, to make rows again beside those that are there.")
    runs.add_argument("--keep_images", action="store_true", help="Keep the drawn images.")
    limits = parts.add_parser("bounds", help="Rows of real images and of chance: what the scorer can tell.")
    limits.add_argument("--sizes", type=int, nargs="+", default=[5000, 50_000], help="Numbers of real images.")
    entry = parts.add_parser("enter", help="A row of the leaderboard for a release of your own.")
    entry.add_argument("release", type=Path, help="Folder of the release.")
    entry.add_argument("--name", required=True, help="Name of the method in the table.")
    entry.add_argument(
        "--epsilon", type=float, required=True, choices=COLUMNS, help="Column of the table. Epsilon 2 stands in 10."
    )
    entry.add_argument("--minutes", type=float, help="Minutes of one core that training took. Nobody checks them.")
    entry.add_argument("--another_seed", action="store_true", help="Another training of a method that you entered.")
    entry.add_argument("--draw", default="", help='Flags of `diffusers-dp sample`: --draw="--solver heun".')
    entry.add_argument("--seed", type=int, default=0, help="Seed of the images that are drawn.")
    entry.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the drawn images.")
    again = parts.add_parser("rescore", help="Verify, draw and score the release of a row again; print both results.")
    again.add_argument("release", type=Path, help="Folder of the release.")
    again.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the drawn images.")
    other = parts.add_parser("redraw", help="A row of other draws from a release in results/releases.")
    other.add_argument("release", type=Path, help="Folder of the release.")
    other.add_argument("--num_images", type=int, default=5000, help="Images to draw.")
    other.add_argument("--draw", default="", help='Flags of `diffusers-dp sample`: --draw="--solver heun".')
    other.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the drawn images.")
    given = parts.add_parser("releases", help="Train a release of each method, data set and epsilon, to push.")
    given.add_argument("folder", type=Path, help="Folder of the releases, outside of the repository.")
    given.add_argument("--cases", type=Path, default=HERE / "board.yaml", help="YAML file of cases: first seeds.")
    given.add_argument("--only", default="", help="Only cases whose name contains this.")
    given.add_argument("--jobs", type=int, default=1, help="Cases side by side, each on one core.")
    given.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the runs. It is private.")
    for each in (runs, limits, entry, again, other, given):
        each.add_argument("--data", action="append", default=[], metavar="NAME=PLACE", help="Place of a data set.")
    shown = parts.add_parser("table", help="Print a table of all rows.")
    shown.add_argument("--results", type=Path, default=RESULTS, help="File of the rows.")
    parts.add_parser("check", help="Recompute epsilon of all kept receipts.")
    parts.add_parser("docs", help="Write the tables of the docs again.")
    args = parser.parse_args(argv)
    if args.what == "table":
        print(table(read_rows(args.results)))
        return 0
    if args.what == "check":
        rows = [*read_rows(RESULTS), *read_rows(EXAMPLES)]
        problems = list(check_kept(rows, RESULTS.parent))
        number = len(folders(RESULTS.parent / RECEIPTS))
        said = f"{number} receipts of {len(rows)} rows recomputed: {len(problems)} problems."
        print("\n".join([*problems, said]))
        return int(bool(problems))
    if args.what == "docs":
        rows = read_rows(RESULTS)
        draw_few_images(rows, ROOT / "docs" / "images" / "few_images.png")
        print("\n".join([*write_docs(rows), *write_evidence(rows)]) or "Nothing changed.")
        draw_board(rows)
        draw_images(rows)
        return 0
    try:
        places = places_of(args.data)
        if args.what == "bounds":
            known = {row["key"] for row in read_rows(RESULTS)}
            for row in bounds(places, args.sizes):
                if row["key"] not in known:
                    write_row(row, RESULTS)
                    print(line_of(row), flush=True)
            return 0
        if args.what == "enter":
            if len(places) != 1:
                raise ValueError("give one --data NAME=PLACE, of the images that the release was trained on")
            row = entered(args, Runner(places, args.output_dir, RESULTS, most_images=Case.num_images))
            write_row(row, RESULTS)
            print(line_of(row))
            return 0
        if args.what == "rescore":
            for old, new in rescored(args.release, Runner(places, args.output_dir, RESULTS)):
                print(f"row: {line_of(old)}\nnow: {line_of(new)}")
            return 0
        if args.what == "redraw":
            runner = Runner(places, args.output_dir, EXAMPLES, keep_images=True)
            write_row(row := redrawn(args.release, args.num_images, tuple(args.draw.split()), runner), EXAMPLES)
            print(line_of(row))
            return 0
        if args.what == "releases" and args.folder.resolve().is_relative_to(ROOT.resolve()):
            raise ValueError("give a folder outside of the repository: releases are large")
        named = [case for case in read_cases(args.cases) if args.only in case.name]
        if args.what == "releases":
            seeds = {(case.name, case.data, case.epsilon): case for case in reversed(named)}
            named = [case for case in named if seeds[case.name, case.data, case.epsilon] is case]
        cases = [case for case in named if data_of(case) <= set(places)]
        missing = sorted({name for case in named for name in data_of(case)} - set(places))
        if not cases:
            raise ValueError(
                f"give --data {missing[0]}=PLACE" if missing else f"no case's name contains {args.only!r}"
            )
    except (OSError, ValueError, Unreadable, Stopped, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    if missing:
        print(f"{len(named) - len(cases)} cases more need a place: --data {missing[0]}=PLACE.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a training must not go on alone
    try:
        if args.what == "releases":
            runner = Runner(places, args.output_dir, RESULTS)
            give = functools.partial(runner.give_release, args.folder)
            return side_by_side(cases, give, str, runner, args.jobs)
        runner = Runner(places, args.output_dir, args.results or RESULTS, args.scored_on, args.keep_images)
        left = left_of(cases, args.scored_on, runner.results)
        print(f"{len(cases)} cases, {len(cases) - len(left)} of which have a row.")
        return run(left, runner, args.jobs)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
