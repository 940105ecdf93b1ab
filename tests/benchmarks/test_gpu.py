# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One command for a GPU: each part runs with tiny sizes on a CPU, once, and goes on where time was over."""

import json
import sys
from importlib import import_module

import numpy as np
import pytest

from support.images import write_dataset
from support.places import ROOT


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("gpu")


@pytest.fixture
def data(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "mnist"
    for split, number in (("train", 60), ("test", 20)):
        images = rng.integers(0, 256, (number, 1, 28, 28), dtype=np.uint8)
        write_dataset(folder, images, np.arange(number) % 10, [str(digit) for digit in range(10)], split)
    return folder


def run(gpu, data, output, *flags):
    code = gpu.main(["run", "--dry_run", "--data_dir", str(data), "--output_dir", str(output), *flags])
    return code, [json.loads(line) for line in (output / "gpu.jsonl").read_text().splitlines()]


def test_a_part_is_done_once_and_the_time_of_a_call_is_kept(gpu, data, tmp_path, capsys):
    code, rows = run(gpu, data, tmp_path / "out", "--only", "exactness")
    assert code == 0 and [(row["part"], row["status"], row["card"]) for row in rows] == [
        ("exactness", "done", "CPU (dry run)")
    ]
    assert "noise has" in rows[0]["said"][-1]
    assert run(gpu, data, tmp_path / "out", "--only", "exactness") == (0, rows)
    assert run(gpu, data, tmp_path / "out", "--seconds", "1") == (0, rows)
    assert "The time is over before pre-flight; call again." in capsys.readouterr().out


def test_a_training_that_takes_longer_is_resumed(gpu, data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpu, "parts", lambda: [gpu.Part("long", f"{sys.executable} -c 'import time; time.sleep(60)'", resumes=True)]
    )
    monkeypatch.setattr(gpu, "GRACE", 1)
    (tmp_path / "out" / "long" / "private").mkdir(parents=True)
    (tmp_path / "out" / "long" / "private" / "run.json").write_text("{}")
    code, rows = run(gpu, data, tmp_path / "out", "--seconds", "2")
    assert code == 0 and rows[-1]["status"] == "unfinished" and rows[-1]["command"].endswith("latest")


@pytest.mark.slow
def test_every_part_runs(gpu, data, tmp_path):
    code, rows = run(gpu, data, tmp_path / "out", "--seconds", "3000")
    assert code == 0 and {row["status"] for row in rows} == {"done"}, rows
    assert [row["part"] for row in rows] == [part.name for part in gpu.parts()]
