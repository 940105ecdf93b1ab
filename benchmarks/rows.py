"""One runner for every figure of the docs: trains, verifies, draws and scores a list of cases, a row for each.

    python benchmarks/rows.py run benchmarks/cases.yaml --data mnist=path/to/mnist --data cifar10=path/to/cifar10
    python benchmarks/rows.py run benchmarks/cases.yaml --data mnist=path/to/mnist --only dpdm --jobs 2
    python benchmarks/rows.py bounds --data mnist=path/to/mnist
    python benchmarks/rows.py table
    python benchmarks/rows.py enter path/to/release --name "My method" --epsilon 10 --data mnist=path/to/mnist
    python benchmarks/rows.py check               # recomputes epsilon of the receipts in benchmarks/results/receipts
    python benchmarks/rows.py rescore Moments_mnist --data mnist=path/to/mnist
    python benchmarks/rows.py pictures --data mnist=path/to/mnist
    python benchmarks/rows.py docs                # writes what is made of rows again: docs, evidence, leaderboard

A case names a method, a recipe, a data set, epsilons, seeds, further training flags, and the minutes that it may take.
Each case runs in processes of its own on one core: training, `diffusers-dp verify`, `diffusers-dp sample`, and
`benchmarks/scorer.py`, which see only what is in `release/`. A release of images is scored as it is. `--jobs 2` runs
two cases side by side. A row is written to `benchmarks/results/rows.jsonl` when its case is done, and a second call
runs the cases that have no row: an interrupted training resumes. All first seeds come first, so that a call that is
stopped at any time still compares.

A sweep is a case with `vary`, flags with lists of values, and becomes a case for each point of the grid. Cases that
differ in how they draw or enlarge images share one training. `{NAME}` in flags is the place that `--data NAME=PLACE`
gives.

Settings are chosen with `--scored_on train`, on training images; such rows stand in no table of test accuracies.
Numbers measured on real images are private where these images are; MNIST's and CIFAR-10's are public.
"""

import argparse
import functools
import json
import math
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import PIL.Image
from board import BESIDE, FILE, PREFIX, digest_of_rows, pictured, write_board
from cases import Case, data_of, filled, read_cases
from evidence import write_evidence
from figures import ROOT, draw_few_images, table, write_docs
from kept import (
    RECEIPT,
    RECEIPTS,
    RELEASES,
    TOLERANCE,
    check_kept,
    digest_of,
    draw_methods,
    first_of_classes,
    folder_of,
    folders,
    keep_receipt,
    keep_release,
    release_name,
    some_images,
)
from tqdm.auto import tqdm

from diffusers_dp.commands.methods import letters
from diffusers_dp.methods.leaderboard import COLUMNS
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.runs.stages import STAGES
from diffusers_dp.verify import Unreadable, known_faults, priced_inputs, read_receipt, settled_digest, verify


HERE = Path(__file__).parent
RESULTS = HERE / "results" / "rows.jsonl"
COMMAND = (sys.executable, "-m", "diffusers_dp.cli")
GRACE = 60  # seconds that a training has to keep its state after its minutes are over
RESUMABLE = 75
LOCAL = "local folder"  # name of all public inputs that have no other


class Stopped(Exception):
    """A case ended without a row."""


@dataclass
class Runner:
    """Runs cases, each with all its processes on one core.

    Args:
        places (`dict[str, str]`): Folder or Hub id of each data set.
        output_dir (`Path`): Folder of the runs, each in a folder named after its case.
        scored_on (`str`): `test` or `train`.
        keep_images (`bool`): Whether drawn images stay after they are scored.
        results (`Path`, *optional*): File of the rows; by default `RESULTS`.
        most_images (`int`, *optional*): Images that are scored, drawn at random; by default all.
    """

    places: dict[str, str]
    output_dir: Path
    scored_on: str = "test"
    keep_images: bool = False
    results: Path | None = None
    most_images: int | None = None
    _trainings: dict[str, threading.Lock] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def row(self, case: Case, core: int | None) -> dict[str, Any]:
        """
        Raises:
            Stopped: A command failed, or training took longer than it may.
        """
        folder = self.folder_of(case)
        run, drawn, minutes = folder / "run", folder / f"drawn_{case.key}", folder / f"minutes_{case.key}.json"
        release, code = run / "release", commit()  # before training: files may change meanwhile
        with self.trains_once(case.training_key):
            if not (release / RECEIPT).exists():
                resume = ["--resume_from_checkpoint", "latest"] if (run / "private" / "run.json").exists() else []
                flags = [*case.training_flags(self.places), "--output_dir", str(run), "--skip_preflight", *resume]
                train = [*COMMAND, "train", case.method, *flags]
                self._call(train, folder / "minutes.json", "train", core, case.minutes * 60)
        row = self.row_of(release, case, drawn, minutes, core) | {
            "commit": code,
            "minutes": {**minutes_in(folder / "minutes.json"), **minutes_in(minutes)},
            "minutes_of_training": minutes_of_training(run), "settings": case.settings,
        }  # fmt: skip
        results = (self.results or RESULTS).parent
        keep_receipt(release, results)
        of_board = case.name.startswith((PREFIX, *BESIDE))
        if of_board and case.seed == 0 and self.scored_on == "test":
            keep_release(release, release_name(row), results)
        return row

    def folder_of(self, case: Case) -> Path:
        name = f"{case.method}_{case.data}_eps{case.epsilon:g}_seed{case.seed}_{case.training_key}"
        return self.output_dir / name

    def row_of(self, release: Path, case: Case, drawn: Path, minutes: Path, core: int | None) -> dict[str, Any]:
        """Verifies a release, draws from it and scores the images.

        Args:
            release (`Path`): Folder of the release. It may be somebody else's.
            drawn (`Path`): New folder for images that are drawn.
            minutes (`Path`): File of the minutes of each command.

        Raises:
            Stopped: A command failed.
        """
        folder = minutes.parent
        self._call([*COMMAND, "verify", str(release)], minutes, "verify", core)
        images = release if (release / "data").is_dir() else drawn
        if images == drawn and not (drawn / "README.md").exists():
            sample = ["sample", str(release), *filled(case.draw, self.places), "--num_images", str(case.num_images)]
            sample += ["--output_dir", str(drawn), "--seed", str(case.seed)]  # last, so that they cannot be changed
            self._call([*COMMAND, *sample], minutes, "draw", core)
        if case.upscale:
            small, images = images, folder / f"large_{case.key}"
            if not (images / "README.md").exists():
                large = ["upscale", str(small), *filled(case.upscale, self.places), "--output_dir", str(images)]
                self._call([*COMMAND, *large], minutes, "upscale", core)
        score = [sys.executable, str(HERE / "scorer.py"), str(images), "--real", self.places[case.data]]
        score += ["--scored_on", self.scored_on]
        if self.most_images is not None:
            score += ["--most_images", str(self.most_images)]
        scored = self._call(score, minutes, "score", core)
        numbers = json.loads(scored.splitlines()[-1])
        receipt = json.loads((release / RECEIPT).read_text(encoding="utf-8"))
        if not self.keep_images:
            for made in (drawn, folder / f"large_{case.key}"):
                shutil.rmtree(made, ignore_errors=True)
        return {
            "key": case.key, "case": case.name, "method": case.method, "recipe": case.recipe, "data": case.data,
            "epsilon": case.epsilon, "seed": case.seed, "flags": " ".join(case.flags), "draw": " ".join(case.draw),
            **({"upscale": " ".join(case.upscale)} if case.upscale else {}),
            **numbers,
            "epsilon_spent": claimed_epsilon(receipt), "delta": receipt["delta"], **proof_of(receipt, case),
            "receipt_sha256": digest_of(release / RECEIPT),
            "commit": commit(), "machine": machine(),
        }  # fmt: skip

    def trains_once(self, key: str) -> threading.Lock:
        """A lock for each training: of two cases that share one, the second waits."""
        with self._lock:
            return self._trainings.setdefault(key, threading.Lock())

    def _call(
        self, command: list[str], minutes: Path, stage: str, core: int | None, seconds: float | None = None
    ) -> str:
        """Runs a command on one core and returns its output. Its processor time is added to the file `minutes`."""
        folder = minutes.parent
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{stage}.log"
        with open(log, "a", encoding="utf-8") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TQDM_MININTERVAL": "10"},
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
            )  # fmt: skip
            # A training that is terminated keeps its state: with more minutes the same command resumes it.
            timers = [] if seconds is None else [
                threading.Timer(seconds, process.terminate), threading.Timer(seconds + GRACE, process.kill)
            ]  # fmt: skip
            try:
                for timer in timers:
                    timer.start()
                output = process.stdout.read() if process.stdout else ""
                _, status, used = os.wait4(process.pid, 0)
            except BaseException:
                process.terminate()
                raise
            finally:
                for timer in timers:
                    timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        known = minutes_in(minutes)
        known[stage] = round(known.get(stage, 0) + (used.ru_utime + used.ru_stime) / 60, 3)
        minutes.write_text(json.dumps(known))
        if process.returncode == RESUMABLE and seconds is not None:
            raise Stopped(f"{stage} took more than {seconds / 60:g} minutes")
        if process.returncode != 0:
            said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise Stopped(f"{stage} ended with exit code {process.returncode} and said: {said[-1]}")
        return output


def minutes_in(file: Path) -> dict[str, float]:
    return json.loads(file.read_text()) if file.exists() else {}


def minutes_of_training(run: Path) -> dict[str, float]:
    """Minutes of processor time of each stage that training finished, in the starts of a run together. What an
    interruption lost, and the start of Python, are only in `minutes`."""
    stages: dict[str, float] = {}
    for line in (run / "private" / STAGES).read_text().splitlines():
        stage = json.loads(line)
        stages[stage["stage"]] = round(stages.get(stage["stage"], 0) + stage["processor_seconds"] / 60, 3)
    return stages


def claimed_epsilon(receipt: dict[str, Any]) -> float:
    return receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]


def proof_of(receipt: dict[str, Any], case: Case) -> dict[str, str]:
    """Status of the proof, and names of all public data and networks."""
    names = [each["kind" if each["name"] == LOCAL else "name"] for each in receipt["public_inputs"]]
    names += ["upscaler"] * ("--upscaler" in " ".join(case.upscale))
    return {"status": receipt["status"], "public": "; ".join(names)}


def commit() -> str:
    """The commit of the code, with `+` after it where files but rows differ from it."""
    git = ["git", "-C", str(HERE)]
    name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/", f":(exclude){HERE / 'results'}"],
        capture_output=True,
        text=True,
    )
    return (name or "unknown") + ("+" if changed.stdout.strip() else "")


def machine() -> dict[str, Any]:
    """The machine by its parts; a case has one of its cores."""
    import torch

    cpu, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": cpu, "cores": 1, "gpu": gpu, "torch": torch.__version__}


def read_rows(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_row(row: dict[str, Any], path: Path = RESULTS) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def left_of(cases: Iterable[Case], scored_on: str, path: Path | None = None) -> list[Case]:
    """Cases without a row, in their order."""
    done = {(row["key"], row["scored_on"]) for row in read_rows(path or RESULTS)}
    return [case for case in cases if (case.key, scored_on) not in done]


def run(cases: list[Case], runner: Runner, jobs: int) -> int:
    """Returns 1 if a case ended without a row."""
    cores: queue.Queue[int | None] = queue.Queue()
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for place in range(jobs):
        cores.put(usable[place % len(usable)] if usable else None)

    def work(case: Case) -> dict[str, Any]:
        core = cores.get()
        try:
            return runner.row(case, core)
        finally:
            cores.put(core)

    failed = 0
    with ThreadPoolExecutor(jobs) as pool, tqdm(total=len(cases), desc="Cases", unit="case") as bar:
        asked = {pool.submit(work, case): case for case in cases}
        try:
            for future in as_completed(asked):
                try:
                    row = future.result()
                    write_row(row, runner.results or RESULTS)
                    bar.write(line_of(row))
                except Stopped as error:
                    failed = 1
                    bar.write(f"{asked[future].name}: {error}.")
                bar.update()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
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


def entered(args: argparse.Namespace, runner: Runner) -> dict[str, Any]:
    """The row of a release that somebody else made: its epsilon is recomputed, and at most as many of its images are
    scored as a case draws.

    Raises:
        ValueError: The name is another method's, or the minutes are not above 0.
        Stopped: It has its row, does not verify, costs more than it is entered for, or cannot be drawn from.
    """
    rows = [row for row in read_rows() if row.get("entered")]
    ours = {case.name.removeprefix(PREFIX) for case in read_cases(HERE / "board.yaml")}
    ours |= {title for method in METHODS.values() for title in (method.name, method.title)}
    if not args.another_seed:
        ours |= {row["case"].removeprefix(PREFIX) for row in rows}
    reserved = args.name.lower().startswith(BESIDE) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 .,+()-]*", args.name)
    if reserved or letters(args.name) in set(map(letters, ours)):
        raise ValueError(
            "--name: give a name of letters and digits that no method has, or --another_seed for your own method"
        )
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise ValueError("--minutes: give a number above 0, or leave it out")
    receipt, problems = verify(args.release)
    if problems:
        raise Stopped(f"{args.release} does not verify: {problems[0]}")
    if fault := next(known_faults(receipt), ""):
        raise Stopped(f"an earlier version wrote its receipt: {fault}")
    digest = digest_of(args.release / RECEIPT)
    (data,) = runner.places
    for row in rows:  # an evaluation or an audit changes a receipt, and not what is settled in it
        kept = read_receipt(folder_of(row["receipt_sha256"], RESULTS.parent))
        same = (row["data"], row["epsilon"]) == (data, args.epsilon)
        if same and settled_digest(kept) == settled_digest(receipt):
            raise Stopped(f"{args.release} has its row already")
    number = len(datasets.load_dataset(runner.places[data], split="train"))
    if dear := too_dear(receipt, args.epsilon, number):
        raise Stopped(dear)
    flags = {"draw": tuple(args.draw.split()), "upscale": tuple(args.upscale.split())}
    case = Case(f"{PREFIX}{args.name}", "", data, args.epsilon, args.seed, **flags)
    folder = runner.output_dir / f"entered_{digest[:12]}_{case.key}"
    row = runner.row_of(args.release.resolve(), case, folder / "drawn", folder / "minutes.json", None)
    keep_receipt(args.release, RESULTS.parent)
    row |= {"entered": True}
    row["kept"] = keep_release(args.release, release_name(row), RESULTS.parent)
    times = minutes_in(folder / "minutes.json") | ({} if args.minutes is None else {"train": args.minutes})
    return row | {"key": f"entered {digest[:12]} {case.key}", "method": None, "minutes": times}


def too_dear(receipt: dict[str, Any], epsilon: float, number: int) -> str:
    """One sentence where a receipt costs more than `epsilon` at the default delta of `number` training images; else an
    empty string. All releases of its data set count, and what it started from."""
    most = 1 / (number * math.log(number))
    together = receipt["dataset"]["epsilon_of_all_releases"]["pld"] if receipt.get("dataset") else 0.0
    spent = max(claimed_epsilon(receipt), together) + sum(origin["epsilon"] for origin in priced_inputs(receipt))
    if spent <= epsilon + TOLERANCE and receipt["delta"] <= most * (1 + TOLERANCE):
        return ""
    return (
        f"its epsilon is {spent:.4g} at delta {receipt['delta']:.3g}, and it was entered for {epsilon:g} at a delta "
        f"of at most {most:.3g}, which is 1/(N ln N) of {number:,} training images"
    )


def rescored(name: str, runner: Runner) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a kept release, and a new one: verified, drawn and scored again.

    Raises:
        ValueError: There is no such release, or its data set has no place.
        Stopped: A command failed.
    """
    release = RESULTS.parent / RELEASES / name
    if not (release / RECEIPT).exists():
        raise ValueError(f"{RELEASES} has no release {name!r}: give the name of a folder there")
    digest = digest_of(release / RECEIPT)
    known = [row for row in read_rows() if row.get("receipt_sha256") == digest and row["scored_on"] == "test"]
    old = next((row for row in known if release_name(row) == name), None)
    if old is None:
        raise ValueError(f"no row has the receipt and the name of {name}")
    if old["data"] not in runner.places:
        raise ValueError(f"give --data {old['data']}=PLACE")
    flags = {part: tuple(old.get(part, "").split()) for part in ("flags", "draw", "upscale")}
    case = Case(
        old["case"], old["method"] or "", old["data"], old["epsilon"], old["seed"], old["recipe"],
        num_images=old["num_drawn"], **flags,
    )  # fmt: skip
    folder = runner.output_dir / f"rescored_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    runner = replace(runner, most_images=old["num_drawn"])
    return old, runner.row_of(release, case, folder / "drawn", folder / "minutes.json", None)


def draw_images(rows: Sequence[dict[str, Any]], cases: Iterable[Case], runner: Runner) -> Iterator[Path]:
    """A picture for each data set that has a place: real images, and images of all methods of the leaderboard. Each
    release is that of a first seed or of an entrant, kept beside the rows or in its run."""
    import scorer

    runs = {case.key: runner.folder_of(case) / "run" / "release" for case in cases}
    for data, place in runner.places.items():
        shown = pictured(rows, data)
        if not shown:
            raise ValueError(f"no row of the leaderboard is of {data}")
        test = scorer.read(place, "test")
        real = first_of_classes(test.images, test.labels)
        columns: dict[str, dict[str, Any]] = {f"epsilon {each:g}": {"real images": real} for each in COLUMNS}
        for row in shown:
            near = (RESULTS.parent / RELEASES / release_name(row), runs.get(row["key"]))
            there = (each for each in near if each is not None and (each / RECEIPT).exists())
            release = next((each for each in there if digest_of(each / RECEIPT) == row["receipt_sha256"]), None)
            if release is None:
                raise ValueError(f"the release of {row['case']} is neither kept nor in {runner.output_dir}")
            images = some_images(release, filled(row["draw"].split(), runner.places))
            columns[f"epsilon {row['epsilon']:g}"][row["case"].removeprefix(PREFIX)] = images
        path = ROOT / "docs" / "images" / f"leaderboard_{data}.png"
        draw_methods(columns, path, shows=digest_of_rows(shown))
        with PIL.Image.open(path) as drawn:
            drawn.convert("RGB").save(FILE.with_name(path.stem + ".webp"), quality=60)  # for the page
        yield path


def places_of(pairs: Iterable[str]) -> dict[str, str]:
    if any("=" not in pair for pair in pairs):
        raise ValueError("--data takes NAME=PLACE")
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
    entry.add_argument("--epsilon", type=float, required=True, choices=COLUMNS, help="Column of the table.")
    entry.add_argument("--minutes", type=float, help="Minutes of one core that training took. Nobody checks them.")
    entry.add_argument("--another_seed", action="store_true", help="Another training of a method that you entered.")
    entry.add_argument("--draw", default="", help='Flags of `diffusers-dp sample`: --draw="--solver heun".')
    entry.add_argument("--upscale", default="", help='Flags of `diffusers-dp upscale`: --upscale="--resolution 64".')
    entry.add_argument("--seed", type=int, default=0, help="Seed of the images that are drawn.")
    entry.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the drawn images.")
    again = parts.add_parser("rescore", help="Verify, draw and score a kept release again, and print both results.")
    again.add_argument("name", help="Name of a folder in benchmarks/results/releases.")
    again.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the drawn images.")
    drawn = parts.add_parser("pictures", help="Draw images of each method, from the releases of their runs.")
    drawn.add_argument("--output_dir", type=Path, default=Path("runs/rows"), help="Folder of the runs.")
    for each in (runs, limits, entry, again, drawn):
        each.add_argument("--data", action="append", default=[], metavar="NAME=PLACE", help="Place of a data set.")
    parts.add_parser("table", help="Print a table of all rows.")
    parts.add_parser("check", help="Recompute epsilon of all kept receipts, and verify all kept releases.")
    parts.add_parser("docs", help="Write the tables of the docs again.")
    args = parser.parse_args(argv)
    if args.what == "table":
        print(table(read_rows()))
        return 0
    if args.what == "check":
        rows = read_rows()
        problems = list(check_kept(rows, RESULTS.parent))
        number = len(folders(RESULTS.parent / RECEIPTS))
        said = f"{number} receipts of {len(rows)} rows recomputed: {len(problems)} problems."
        print("\n".join([*problems, said]))
        return int(bool(problems))
    if args.what == "docs":
        rows = read_rows()
        draw_few_images(rows, ROOT / "docs" / "images" / "few_images.png")
        print("\n".join([*write_docs(rows), *write_evidence(rows), *write_board(rows)]) or "Nothing changed.")
        return 0
    try:
        places = places_of(args.data)
        if args.what == "bounds":
            known = {row["key"] for row in read_rows()}
            for row in bounds(places, args.sizes):
                if row["key"] not in known:
                    write_row(row)
                    print(line_of(row), flush=True)
            return 0
        if args.what == "enter":
            if len(places) != 1:
                raise ValueError("give one --data NAME=PLACE, of the images that the release was trained on")
            row = entered(args, Runner(places, args.output_dir, most_images=Case.num_images))
            write_row(row)
            print(line_of(row))
            return 0
        if args.what == "rescore":
            for row in rescored(args.name, Runner(places, args.output_dir)):
                print(line_of(row))
            return 0
        if args.what == "pictures":
            if not places:
                raise ValueError("give --data NAME=PLACE, of a data set of the leaderboard")
            cases = read_cases(HERE / "board.yaml")
            for path in draw_images(read_rows(), cases, Runner(places, args.output_dir)):
                print(path.relative_to(ROOT))
            return 0
        named = [case for case in read_cases(args.cases) if args.only in case.name]
        cases = [case for case in named if data_of(case) <= set(places)]
        missing = sorted({name for case in named for name in data_of(case)} - set(places))
        if not cases:
            raise ValueError(
                f"give --data {missing[0]}=PLACE" if missing else f"no case's name contains {args.only!r}"
            )
    except (OSError, ValueError, Unreadable, Stopped, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    left = left_of(cases, args.scored_on, args.results)
    print(f"{len(cases)} cases, {len(cases) - len(left)} of which have a row.")
    if missing:
        print(f"{len(named) - len(cases)} cases more need a place: --data {missing[0]}=PLACE.")
    return run(left, Runner(places, args.output_dir, args.scored_on, args.keep_images, args.results), args.jobs)


if __name__ == "__main__":
    sys.exit(main())
