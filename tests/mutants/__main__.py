# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`make mutants`: plants each fault in a copy of the repository, and fails if the tests let one pass.

python -m mutants [--only WORD] [--jobs N] [--root FOLDER] [--fresh]    (with tests/ on PYTHONPATH)

Each verdict is written to `build/mutants.jsonl` as it comes. A second call on the same files decides what is left.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from . import FAULTS
from .fault import Fault


ROOT = Path(__file__).parents[2]
COPIED = (
    "diffusers_dp", "pipelines", "training", "benchmarks", "examples", "tests", "docs", "app.py", "constraints.txt",
    "setup.cfg", "pyproject.toml", "requirements-hashed.txt", "Dockerfile", ".github", ".ci",
)  # fmt: skip
# The faults, and their test: it compares them with the code, and would notice every one.
LEFT_OUT = ("__pycache__", "test_mutants.py", "mutants")
BESIDE = ("pipelines", "training")  # packages of the library that lie beside its folder
PACKAGES = ("diffusers_dp", *(f"diffusers_dp.{name}" for name in BESIDE))
# Of others, and slow to import.
PRELOADED = (
    "torch", "diffusers", "accelerate", "datasets", "transformers", "dp_accounting.pld",
    "scipy.stats", "hypothesis.strategies",
)  # fmt: skip
PATIENCE = 1500  # seconds
VERDICTS = "build/mutants.jsonl"  # below the repository


class CannotPlant(Exception):
    """The code that a fault replaces is not there exactly once."""


def main(argv: list[str] | None = None, faults: Iterable[Fault] = FAULTS) -> int:
    """Returns 0 if the tests pass on an unchanged copy and fail on every changed one."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Only faults whose name contains this.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="Copies at a time.")
    parser.add_argument("--root", type=Path, default=ROOT, help="The repository.")
    parser.add_argument("--fresh", action="store_true", help="Forget the verdicts of earlier calls.")
    args = parser.parse_args(argv)
    faults = [fault for fault in faults if args.only in fault.name]
    if not faults:
        parser.error(f"no fault's name contains {args.only!r}")
    with tempfile.TemporaryDirectory() as folder:
        whole = copy_of(args.root, Path(folder))  # an edit of the repository during this call touches no verdict
        for fault in faults:
            planted(fault, whole)  # all that cannot be planted is said before anything runs
        return judge(faults, whole, args.jobs, Verdicts(args.root / VERDICTS, hash_of(whole), fresh=args.fresh))


def judge(faults: list[Fault], whole: Path, jobs: int, verdicts: "Verdicts") -> int:
    left = [fault for fault in faults if verdicts.of(fault) is None]
    tests = sorted({test for fault in left for test in fault.tests if verdicts.of(test) is None})
    decided = len(faults) - len(left)
    print(f"{len(faults)} faults, {decided} of them decided before (--fresh forgets that), {len(left)} left.")
    if tests:
        print(f"First, {len(tests)} tests on an unchanged copy.", flush=True)
        with another(whole) as copy:
            code, output = run_tests(copy, tests)
        if code != 0:
            print(output, "The tests must pass before faults are planted.", sep="\n")
            return 1
        for test in tests:
            verdicts.keep(test, passes=True)
    width, digits = max(len(fault.name) for fault in faults), len(str(len(faults)))
    print(f"{'':{2 * digits + 1}}  {'fault':<{width}}  {'seconds':>7}  caught by", flush=True)
    survivors = []
    with ThreadPoolExecutor(jobs) as pool:
        asked = {pool.submit(timed, fault, whole): fault for fault in left}
        try:
            for number, fault in enumerate(decided_in_turn(faults, left, asked, verdicts), 1):
                found = verdicts.of(fault)
                place, caught_by = f"{number:>{digits}}/{len(faults)}", found["caught_by"] or "NOTHING"
                print(f"{place}  {fault.name:<{width}}  {found['seconds']:>7.0f}  {caught_by}", flush=True)
                survivors += [] if found["caught_by"] else [fault.name]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    print(f"{sum(verdicts.of(fault)['seconds'] for fault in faults) / 60:.0f} minutes of tests, over all calls.")
    if survivors:
        print(f"{len(survivors)} of {len(faults)} survive: {'; '.join(survivors)}.")
    else:
        print(f"All {len(faults)} are caught.")
    return 1 if survivors else 0


def decided_in_turn(
    faults: Iterable[Fault], left: Iterable[Fault], asked: dict[Any, Fault], verdicts: "Verdicts"
) -> Iterator[Fault]:
    """Those decided before, and then each of the others when it is, which is written down first."""
    yield from (fault for fault in faults if fault not in left)
    for future in as_completed(asked):
        caught_by, seconds = future.result()
        verdicts.keep(asked[future], caught_by=caught_by, seconds=seconds)
        yield asked[future]


class Verdicts:
    """What is known of faults and of tests on an unchanged copy, a line for each in a file.

    Args:
        path (`Path`): The file; it is made when needed.
        tree (`str`): Hash of what is copied: other files have other verdicts.
        fresh (`bool`): Whether what earlier calls found is forgotten.
    """

    def __init__(self, path: Path, tree: str, *, fresh: bool):
        self.path, self.tree, self.known = path, tree, {}
        if fresh or not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                verdict = json.loads(line)
                self.known[verdict["key"]] = verdict
            except (ValueError, LookupError, TypeError):  # a call that was killed wrote half of it
                continue

    def of(self, what: Fault | str) -> dict[str, Any] | None:
        return self.known.get(self._key(what))

    def keep(self, what: Fault | str, **verdict: Any) -> None:
        name = what if isinstance(what, str) else what.name
        verdict = {"key": self._key(what), "name": name, **verdict}
        self.known[verdict["key"]] = verdict
        self.path.parent.mkdir(exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(verdict)}\n")

    def _key(self, what: Fault | str) -> str:
        return hashlib.sha256(f"{self.tree} {what!r}".encode()).hexdigest()


def hash_of(copy: Path) -> str:
    """Of the names and contents of all files, and of the Python that runs them."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(path for path in copy.rglob("*") if path.is_file() and not path.is_symlink()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{content}  {path.relative_to(copy)}\n".encode())
    return digest.hexdigest()


def timed(fault: Fault, whole: Path) -> tuple[str | None, float]:
    start = time.perf_counter()
    return catch(fault, whole), time.perf_counter() - start


def catch(fault: Fault, whole: Path) -> str | None:
    """Returns the first of the tests named for a fault that fails with it."""
    with another(whole) as copy:
        (copy / fault.file).write_text(planted(fault, whole), encoding="utf-8")
        code, output = run_tests(copy, fault.tests)
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", output, re.MULTILINE)
    if code == 1 and failed:
        return failed[1]
    if code != 0:
        raise RuntimeError(f"{fault.name}: the tests ended with {code}, neither passed nor failed.\n{output}")
    return None


def planted(fault: Fault, root: Path) -> str:
    """The file with the fault.

    Raises:
        CannotPlant: The code it replaces is not there exactly once.
    """
    text = (root / fault.file).read_text(encoding="utf-8")
    edits = [(fault.old, fault.new), *([(fault.old_too, fault.new_too)] if fault.old_too else [])]
    for old, new in edits:
        if text.count(old) != 1 or old == new:
            raise CannotPlant(
                f"{fault.name!r} cannot be planted: {fault.file} has {text.count(old)} times, not once, what it "
                "replaces. Say in tests/mutants what the code looks like now."
            )
        text = text.replace(old, new)
    return text


def copy_of(root: Path, folder: Path) -> Path:
    """What the tests need of the repository, with packages where Python finds them without an installation."""
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        elif (root / name).exists():
            shutil.copyfile(root / name, folder / name)
    for name in BESIDE:
        if (folder / name).exists():
            (folder / "diffusers_dp" / name).symlink_to(Path("..", name))
    return folder


@contextlib.contextmanager
def another(whole: Path) -> Iterator[Path]:
    """A copy of the copy, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(whole, folder, symlinks=True, dirs_exist_ok=True))


def run_tests(copy: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Exit code and output of pytest on a copy, up to its first failure.

    It runs in a fork, so that torch and the like are imported once for all faults.
    """
    preload()
    output = copy.with_name(f"{copy.name}.txt")
    process = multiprocessing.get_context("fork").Process(target=run_pytest, args=(copy, list(tests), output))
    process.start()
    process.join(PATIENCE)
    process.kill()
    process.join()
    shutil.rmtree(copy.with_name(f"{copy.name}.tmp"), ignore_errors=True)
    text = output.read_text(errors="replace") if output.exists() else ""
    output.unlink(missing_ok=True)
    return process.exitcode, text


def preload() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch reads it; and a process with threads is not to be forked
    for name in PRELOADED:
        importlib.import_module(name)


def run_pytest(copy: Path, tests: list[str], output: Path) -> None:
    """Runs in the fork, and ends it."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}  # for processes that tests start
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    code = 70
    try:
        check_imports(copy)
        options = ["-x", "-q", "--no-header", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-m", ""]
        # Its own folder: pytest removes those of earlier runs of a user, and what then fails would count as caught.
        options.append(f"--basetemp={copy.with_name(f'{copy.name}.tmp')}")
        code = int(pytest.main([*options, *(f"tests/{test}" for test in tests)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def check_imports(copy: Path) -> None:
    """The tests would prove nothing about a package that is imported from elsewhere."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package) if (copy / package.replace(".", "/")).exists() else None
        if spec and not Path(spec.origin).resolve().is_relative_to(copy.resolve()):
            raise RuntimeError(f"The tests would import {spec.origin}, not the copy.")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotPlant as error:
        sys.exit(f"error: {error}")
