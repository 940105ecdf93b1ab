# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `make_golden.py` and `test_golden.py` do with a golden run: its data, its copy with real paths, its
command, what is read of it.

What these lines import of the library is all that a golden test knows of its rooms: where code moves, the names
change here and nowhere else.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import DiffusersDPError, Interrupted
from diffusers_dp.methods.config import CONFIGS, load_config, resolve
from diffusers_dp.runs.identity import read_identity
from diffusers_dp.runs.plan import Plan, dp_sgd_row, plan_run
from diffusers_dp.runs.run_ledger import new_ledger


ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(__file__).resolve().parent
#: Every release of one version holds the same `pipeline.py`; it is kept once, and not as code that tools would
#: rewrite.
PIPELINE = GOLDEN / "pipeline_of_the_releases.txt"
NAMES = ("left", "empty", "right")


def script(method: str) -> Path:
    return ROOT / "training" / f"train_{method}.py"


def cases() -> dict[str, dict[str, Any]]:
    """What is written down of each golden run, by its name."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*/case.json"))}


# Data: random images, the same ones at every call.


def _images(count: int, seed: int) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)) for _ in range(count)]


def write_data(folder: Path) -> Path:
    """40 images in folders by class (one class has none), 40 of 7 patients, 40 without labels, and 12 public ones in
    two folders."""
    for name, classes, count in (("folders", NAMES, 40), ("public", ("circle", "square"), 12)):
        for label in classes:
            (folder / name / label).mkdir(parents=True)
        for number, image in enumerate(_images(count, seed=count)):
            image.save(folder / name / classes[-(number % 2)] / f"{number:03}.png")
    image, label = datasets.Image(), datasets.ClassLabel(names=list(NAMES))
    _write_parquet(
        folder / "patients",
        {"image": image, "label": label, "patient_id": datasets.Value("string")},
        {"label": [2 * (n % 2) for n in range(40)], "patient_id": [f"p{n * n % 13}" for n in range(40)]},
    )
    _write_parquet(folder / "plain", {"image": image}, {})
    return folder


def _write_parquet(folder: Path, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
    folder.mkdir()
    table = datasets.Dataset.from_dict(
        {"image": _images(40, seed=len(columns)), **columns}, features=datasets.Features(features)
    )
    table.to_parquet(folder / "train-00000-of-00001.parquet")


# A golden run with real paths.


def flags(case: dict[str, Any], place: Path, data: Path, more: tuple[str, ...] | list[str] = ()) -> list[str]:
    """Its command line, of a run at `place/run`."""
    paths = {"{run}": place / "run", "{ledgers}": place / "ledgers", "{data}": data, "{start}": place / "start"}
    given = " ".join([case["flags"], *more])
    for name, path in paths.items():
        given = given.replace(name, str(path))
    return given.split()


def ledger_of(case: dict[str, Any], place: Path) -> Path:
    own, shared = place / "run" / "private" / "ledger.jsonl", place / "ledgers" / "images.jsonl"
    return (shared if "--dataset_id" in case["flags"] else own).resolve()


def put(name: str, state: str, place: Path) -> None:
    """Copies a golden run to `place`, and the release that it begins with.

    Args:
        name (`str`): Of the case.
        state (`str`): `stopped` or `finished`.
        place (`Path`): Becomes the folder that holds `run/`, and `ledgers/` where releases share one.
    """
    case = cases()[name]
    shutil.copytree(GOLDEN / name / state, place)
    identity = place / "run" / "private" / "run.json"
    identity.write_text(identity.read_text().replace("{ledger}", str(ledger_of(case, place))))
    if case.get("start"):
        shutil.copytree(GOLDEN / case["start"] / "finished" / "run" / "release", place / "start")
    for release in (place / "run" / "release", place / "start"):
        if release.exists():
            shutil.copyfile(PIPELINE, release / "pipeline.py")


# Its command.


def launch(count: int, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """A program in processes of its own, on one CPU thread each."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    paths = [str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    launcher = [sys.executable]
    if count > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600
    )


def exit_code(train: Any, given: list[str]) -> int:
    """Of a training script's `main` in this process."""
    try:
        train(given)
    except (DiffusersDPError, Interrupted) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


# What is read of it.


def planned(method: str, given: list[str]) -> dict[str, Any]:
    """What a command line plans: `rows` by name, and the lines of the `table`."""
    config = load_config(given, CONFIGS[method])
    plan = plan_run(config, public_facts(config.data))
    return {"rows": {name: asdict(row) for name, row in plan.rows.items()}, "table": plan.table.splitlines()}


def read_back(method: str, given: list[str], at_most: int) -> dict[str, Any]:
    """What the ledger of a run says, opened as a run that goes on opens it.

    Returns:
        `dict`: Its `rows`, `epsilon` (`None` without guarantee), and `next_steps`: as many more steps as it can
        pay for, at most `at_most`.
    """
    config = load_config(given, CONFIGS[method])
    facts = public_facts(config.data)
    identity = read_identity(Path(config.output_dir, "private"), config.dataset_id, config.ledger_path)
    ledger = new_ledger(config.ledger_path, config, facts, identity)
    try:
        plan = Plan(resolve(config, facts.num_units), {}, ledger)
        step = dp_sgd_row(config, plan, ledger)
        epsilon = ledger.epsilon() if ledger.has_guarantee else None
        return {"rows": ledger.rows, "epsilon": epsilon, "next_steps": ledger.affordable_steps(step, at_most)}
    finally:
        ledger.close()


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of all releases in a ledger's file, as they stand there."""
    return [line for line in map(json.loads, path.read_text().splitlines()) if line.get("kind") != "header"]


def learned(place: Path) -> dict[str, dict[str, np.ndarray]]:
    """The weights of every model in a run's folder but for its checkpoints, by folder; and the released samples."""
    run, found = place / "run", {}
    for path in sorted(run.rglob("*.safetensors")):
        name = path.relative_to(run)
        if not any(part.startswith("checkpoint-") or part == "answers" for part in name.parts):
            folder = name.parent.parent if name.parent.name == "unet" else name.parent
            found[folder.as_posix().replace("/", ".")] = load_file(path)
    samples = run / "release" / "samples.png"
    if samples.exists():
        found["samples"] = read_learned(samples)
    return found


def identity_of(place: Path) -> dict[str, Any]:
    return json.loads((place / "run" / "private" / "run.json").read_text())


def outside_private(place: Path) -> list[str]:
    """The files of a run that may leave the house."""
    run = place / "run"
    names = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    return sorted(name.as_posix() for name in names if name.parts[0] != "private")


def read_learned(path: Path) -> dict[str, np.ndarray]:
    """Weights, or the pixels of samples."""
    return {"pixels": np.asarray(Image.open(path))} if path.suffix == ".png" else load_file(path)


def share_apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The share of a model's weights that differ by more than 1e-5, or of pixels by more than one grey level.
    Other shapes differ everywhere. A weight whose gradient is nothing but rounding moves anywhere on another
    machine, so that a few may differ."""
    if {name: array.shape for name, array in one.items()} != {name: array.shape for name, array in other.items()}:
        return 1.0
    most = {name: 1 if array.dtype == np.uint8 else 1e-5 for name, array in one.items()}
    apart = [abs(one[name].astype(float) - other[name].astype(float)).ravel() > most[name] for name in one]
    return float(np.concatenate(apart).mean())
