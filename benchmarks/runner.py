# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs a case of `rows.py`, and the file of its rows."""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from board import PREFIX, TITLES
from cases import Case, filled
from kept import RECEIPT, digest_of, keep_receipt, keep_some_images

from diffusers_dp.runs.stages import STAGES


HERE = Path(__file__).parent
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
        results (`Path`): File of the rows. Receipts are kept beside it.
        scored_on (`str`): `test` or `train`.
        keep_images (`bool`): Whether drawn images stay after they are scored.
        most_images (`int`, *optional*): Images that are scored, drawn at random; by default all.
    """

    places: dict[str, str]
    output_dir: Path
    results: Path
    scored_on: str = "test"
    keep_images: bool = False
    most_images: int | None = None
    _processes: set[subprocess.Popen[str]] = field(default_factory=set, repr=False)
    _is_stopped: bool = field(default=False, repr=False)
    _trainings: dict[str, threading.Lock] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def row(self, case: Case, core: int | None) -> dict[str, Any]:
        """
        Raises:
            Stopped: A command failed, training took longer than it may, or there are no images to score on.
        """
        folder = self.folder_of(case)
        drawn, minutes = folder / f"drawn_{case.key}", folder / f"minutes_{case.key}.json"
        code, before = commit(), machine()["gflops"]  # before training: files may change meanwhile
        release = self.trained(case, core)
        row = self.row_of(release, case, drawn, minutes, core)
        # Of the session that ends the row: others may have begun its training.
        row["machine"]["gflops"] = round((before + row["machine"]["gflops"]) / 2, 1)
        row |= {
            "commit": code,
            "minutes": {**minutes_in(folder / "minutes.json"), **minutes_in(minutes)},
            "minutes_of_training": minutes_of_training(release.parent), "settings": case.settings,
        }  # fmt: skip
        keep_receipt(release, self.results.parent)
        return row

    def trained(self, case: Case, core: int | None) -> Path:
        """
        Trains a case, or finishes its training, unless its release is there.

        Returns:
            `Path`: Folder of the release.

        Raises:
            Stopped: Training failed or took longer than it may, or there are no images to score on.
        """
        self.check_place(case.data)
        run = self.folder_of(case) / "run"
        with self.trains_once(case.training_key):
            if not (run / "release" / RECEIPT).exists():
                resume = ["--resume_from_checkpoint", "latest"] if (run / "private" / "run.json").exists() else []
                flags = [*case.training_flags(self.places), "--output_dir", str(run), "--skip_preflight", *resume]
                train = [*COMMAND, "train", case.method, *flags]
                self._call(train, run.parent / "minutes.json", "train", core, case.minutes * 60)
        return run / "release"

    def give_release(self, place: Path, case: Case, core: int | None) -> Path:
        """
        Trains a case, verifies its release, and copies it to a folder named after method, data and epsilon.

        Args:
            place (`Path`): Folder of releases. A release of the same name is replaced.

        Raises:
            Stopped: Training failed or took longer than it may, or the release does not verify.
        """
        release = self.trained(case, core)
        folder = place / f"{case.name.removeprefix(PREFIX)} {case.data} epsilon {case.epsilon:g}".replace(" ", "_")
        self._call([*COMMAND, "verify", str(release)], release.parents[1] / "minutes_of_verify.json", "verify", core)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(release, folder)
        return folder

    def check_place(self, data: str) -> int:
        """Returns the number of training images of a data set.

        Raises:
            Stopped: A data set lacks a split, or its images have no classes.
        """
        numbers = []
        for split in ("train", self.scored_on):
            try:
                rows = datasets.load_dataset(self.places[data], split=split)
            except (ValueError, OSError) as error:  # no such split, or no such folder
                raise Stopped(f"--data {data}: give a data set with the splits train and test ({error})") from None
            if not any(isinstance(feature, datasets.ClassLabel) for feature in rows.features.values()):
                raise Stopped(f"--data {data}: give a data set whose split {split} has a column of classes")
            numbers.append(len(rows))
        return numbers[0]

    def stop(self) -> None:
        """Ends all commands that are running, and starts no other: a training keeps its state."""
        self._is_stopped = True
        for process in tuple(self._processes):
            process.terminate()

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
            Stopped: A command failed, or fewer images were scored than were asked for.
        """
        self._call([*COMMAND, "verify", str(release)], minutes, "verify", core)
        images = release if (release / "data").is_dir() else drawn
        drawn_here = images == drawn
        if drawn_here and not is_whole(drawn):
            sample = ["sample", str(release), *filled(case.draw, self.places), "--num_images", str(case.num_images)]
            sample += ["--output_dir", str(drawn), "--seed", str(case.seed)]  # last, so that they cannot be changed
            self._call([*COMMAND, *sample], minutes, "draw", core)
        score = [sys.executable, str(HERE / "scorer.py"), str(images), "--real", self.places[case.data]]
        score += ["--scored_on", self.scored_on]
        if self.most_images is not None:
            score += ["--most_images", str(self.most_images)]
        scored = self._call(score, minutes, "score", core)
        numbers = json.loads(scored.splitlines()[-1])
        if drawn_here and numbers["num_drawn"] != min(case.num_images, self.most_images or case.num_images):
            raise Stopped(f"{numbers['num_drawn']:,} of {case.num_images:,} images were scored: remove {images}")
        pictured = case.name.startswith(PREFIX) and case.data in TITLES and self.scored_on == "test"
        if pictured and (case.seed == 0 or not case.method):
            keep_some_images(release, images, case.data, self.places[case.data], self.results.parent)
        receipt = json.loads((release / RECEIPT).read_text(encoding="utf-8"))
        if not self.keep_images:
            shutil.rmtree(drawn, ignore_errors=True)
        return {
            "key": case.key, "case": case.name, "method": case.method, "recipe": case.recipe, "data": case.data,
            "epsilon": case.epsilon, "seed": case.seed, "flags": " ".join(case.flags), "draw": " ".join(case.draw),
            **({"num_asked": case.num_images} if drawn_here else {}), **numbers,
            "epsilon_spent": claimed_epsilon(receipt), "delta": receipt["delta"], **proof_of(receipt, case),
            "receipt_sha256": digest_of(release / RECEIPT),
            "machine": machine(),
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
            self._processes.add(process)
            if self._is_stopped:  # while it started
                process.terminate()
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
                self._processes.discard(process)
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


def is_whole(folder: Path) -> bool:
    """Whether a folder holds as many shards as their names tell: README.md is written before the images are drawn."""
    names = [path.name for path in folder.glob("data/train-*-of-*.parquet")]
    return bool(names) and len(names) == int(names[0].removesuffix(".parquet").rpartition("-")[2])


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
    return {"status": receipt["status"], "public": "; ".join(names)}


def usable_cores() -> Sequence[int | None]:
    """Cores of this process; `None` where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]


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
    """The machine by its parts, and the speed of a core; a case has one of its cores."""
    import torch

    cpu, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": cpu, "cores": 1, "gpu": gpu, "torch": torch.__version__, "gflops": round(speed(), 1)}


def speed(size: int = 1024, times: int = 60) -> float:
    """Billions of operations a second of one core in matrix products, by processor time: a median."""
    import torch

    threads, factor, seconds = torch.get_num_threads(), torch.ones(size, size), []
    torch.set_num_threads(1)
    for _ in range(times):
        start = time.thread_time()
        torch.mm(factor, factor)
        seconds.append(time.thread_time() - start)
    torch.set_num_threads(threads)
    return 2e-9 * size**3 / statistics.median(seconds)


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_row(row: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
