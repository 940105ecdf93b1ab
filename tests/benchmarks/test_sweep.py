# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A grid of runs: each is made once, judged once, and drawn."""

import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from diffusers_dp.errors import UsageError
from support.benchmarks import BENCHMARKS, QUICK_FLAGS


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    module = import_module("sweep")
    monkeypatch.setattr(module.demo_accuracy, "CLASSIFIER_STEPS", 2)
    return module


def flags(tmp_path, *more):
    own = ["--num_images", "40", "--output_dir", str(tmp_path)]
    return [
        *own,
        *more,
        "--",
        *QUICK_FLAGS,
        "--curriculum",
        "none",
        "--train_batch_size",
        "1337",
        "--validation_size",
        "100",
    ]


def test_each_point_of_a_grid_is_made_and_judged_once(sweep, tmp_path, monkeypatch):
    sweep.main(flags(tmp_path, "--vary", "target_epsilon", "4"))
    grid = ["--vary", "target_epsilon", "4", "8"]
    sweep.main(flags(tmp_path, *grid))
    rows = sweep.read(tmp_path / "results.jsonl")
    assert [row["target_epsilon"] for row in rows] == ["4", "8"]
    for row in rows:
        assert row["judged_on"] == "validation" and 0 <= row["accuracy"] <= 1
        assert 0 < row["epsilon_spent"] <= float(row["target_epsilon"])

    def never(*_, **__):
        raise AssertionError("trained or judged again")

    monkeypatch.setattr(sweep, "load_verified", never)
    sweep.main(flags(tmp_path, *grid))


def test_a_run_without_guarantee_for_comparison(sweep, tmp_path):
    for _ in range(2):
        sweep.main(flags(tmp_path, "--vary", "target_epsilon", "inf"))
    (row,) = sweep.read(tmp_path / "results.jsonl")
    assert row["epsilon_spent"] == "inf" and 0 <= row["accuracy"] <= 1
    assert not (tmp_path / "target_epsilon=inf_seed=0" / "release").exists()


def test_two_flags_are_a_line_each_or_a_map(sweep, tmp_path):
    rows = [
        {"sigma": a, "epsilon": b, "seed": seed, "accuracy": (float(a) + float(b) + seed) / 100}
        for a in ("1", "2")
        for b in ("3", "4")
        for seed in (0, 1)
    ]
    for as_map in (False, True):
        args = SimpleNamespace(vary=[["sigma", "1", "2"], ["epsilon", "3", "4"]], map=as_map, seeds=[0, 1])
        sweep.draw(rows, args, tmp_path / f"{as_map}.svg")
        assert "<svg" in (tmp_path / f"{as_map}.svg").read_text()


def test_the_validation_images_are_those_that_training_leaves_out(sweep, tmp_path):
    judged_on, (images, labels) = sweep.real_images([*QUICK_FLAGS, "--validation_size", "100"], tmp_path)
    assert judged_on == "validation" and len(images) == len(labels) == 100
    config = sweep.load_config([*QUICK_FLAGS, "--validation_size", "100"])
    trained = sweep.load_images(config.data, sweep.public_facts(config.data), tmp_path / "cache").images
    seen = {image.tobytes() for image in trained}
    assert sum(image.numpy().tobytes() in seen for image in images) <= 2  # digits that exist twice
    assert sweep.real_images(QUICK_FLAGS, tmp_path)[0] == "test"


def test_what_cannot_be_is_refused_before_a_run(sweep, tmp_path):
    with pytest.raises(UsageError, match="--vary"):
        sweep.main(flags(tmp_path, "--vary", "seed"))
    with pytest.raises(UsageError, match="--target_epsilon"):
        sweep.main(flags(tmp_path, "--vary", "target_epsilon", "4", "-1"))
    assert not (tmp_path / "results.jsonl").exists()
