# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A thousand hostile and wrong uses in a process that is watched: none hangs or takes more than a minute of the
processor or more than 2 GB, none ends in a traceback, and none reads a file of the host."""

import json
import os
import queue
import subprocess
import sys
import threading

import pytest

from support.places import ROOT


PATIENCE = 300  # seconds for one case, on a machine that does other work; the worker counts its own
START = 180  # until the first one begins
QUICK = 283  # of how many cases one is taken in each run of the tests


def run_cases(folder, step):
    """Name, fault and seconds of each case, fault `None` where there is none. A case that hangs is ended with its
    process, and the others follow in a new one."""
    found, first = {}, 0
    while first is not None:
        first = _run(folder / f"from-{first}", first, step, found)
    return found


def _run(folder, first, step, found):
    """Runs until the end, and returns `None`; or until one hangs, and returns the place of the next."""
    folder.mkdir()
    worker = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/support/hostile_worker.py"), str(folder), str(first), str(step)],
        stdout=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path]), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = queue.Queue()
    threading.Thread(target=lambda: [*map(lines.put, worker.stdout), lines.put("")], daemon=True).start()
    running, patience = None, START
    try:
        while True:
            try:
                line = lines.get(timeout=patience)
            except queue.Empty:
                found[running["name"]] = f"took longer than {PATIENCE} s", PATIENCE
                return running["place"] + step
            if not line:
                assert running is None, f"{running} ended the process with {worker.wait()}"
                assert worker.wait() == 0
                return None
            said = json.loads(line)
            if "name" in said:
                running, patience = said, PATIENCE
            else:
                found[running["name"]] = said["fault"], said["seconds"]
                running, patience = None, START
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def faults(found):
    return {name: fault for name, (fault, _) in found.items() if fault is not None}


def test_some_hostile_cases(tmp_path):
    """All of them are in `test_all_hostile_cases`."""
    found = run_cases(tmp_path, QUICK)
    assert faults(found) == {} and len(found) >= 4


@pytest.mark.slow
def test_all_hostile_cases(tmp_path):
    found = run_cases(tmp_path, 1)
    slowest = sorted(found.items(), key=lambda case: -case[1][1])[:5]
    print(f"{len(found)} cases; the slowest: {[(name, round(seconds, 1)) for name, (_, seconds) in slowest]}")
    assert faults(found) == {} and len(found) >= 1000
