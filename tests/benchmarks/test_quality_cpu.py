# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of record on the embedded digits with two steps of everything: train, interrupt, evaluate,
tabulate."""

import json
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

from diffusers_dp.errors import IntegrityError
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.verify import verify
from support.benchmarks import BENCHMARKS, QUICK_FLAGS


# Full batches, computed at once: their noise is soon calibrated.
CURRICULA = ["none", "spatial", "spatial,frequency"]


@pytest.fixture
def quality(tmp_path, monkeypatch):
    """The benchmark as a module, with a preset of its own, and results and docs in a folder of this test."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    module = import_module("quality_cpu")
    preset = module.Preset({4.0: QUICK_FLAGS}, {"num_images": 40, "num_inference_steps": 2})
    monkeypatch.setitem(module.PRESETS, "cpu", preset)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results" / "quality_cpu.jsonl")
    monkeypatch.setattr(module, "DOCUMENT", tmp_path / "benchmarks.md")
    monkeypatch.setattr(module.demo_accuracy, "CLASSIFIER_STEPS", 2)
    module.DOCUMENT.write_text("before\n<!-- quality_cpu -->\nold\n<!-- /quality_cpu -->\nafter\n")
    return module


@pytest.fixture
def do(quality, tmp_path):
    common = ["--output_dir", str(tmp_path / "runs"), "--epsilons", "4", "--curricula", *CURRICULA]
    return lambda what, *more: quality.main([what, *common, *more])


def ledger_rows(private):
    rows = [json.loads(line) for line in (private / "ledger.jsonl").read_text().splitlines()[1:]]
    keys = ("stage", "mechanism", "noise_multiplier", "sampling_probability", "steps_reserved", "query", "partition")
    return [{key: row[key] for key in keys} for row in rows]


def weights(folder):
    return (folder / "unet" / "diffusion_pytorch_model.safetensors").read_bytes()


class Interrupted(Exception):
    pass


def interrupt(*_, **__):
    raise Interrupted


def test_train_evaluate_and_go_on(quality, do, tmp_path, monkeypatch):
    asked = []
    noisy_sum = SensitiveImages.noisy_sum

    def counted(self, *arguments, **keywords):
        asked.append(keywords["name"])
        return noisy_sum(self, *arguments, **keywords)

    monkeypatch.setattr("diffusers_dp.privacy.sensitive.SensitiveImages.noisy_sum", counted)
    for place in ("runs.earlier_answers._charged", "privacy.sensitive.SensitiveImages.noisy_gradient"):
        with monkeypatch.context() as patch:
            patch.setattr(f"diffusers_dp.{place}", interrupt)  # where answers are taken, and at the first step
            with pytest.raises(Interrupted):
                do("train", "--seeds", "0")
    do("train", "--seeds", "0")
    assert asked == ["central_images", "frequency_features"]  # once, for three runs
    (base,) = (tmp_path / "runs").glob("cpu_*/seed0")
    check_releases(base)

    do("evaluate", "--seeds", "0")
    before = quality.read_results()
    do("train", "--seeds", "0", "1", "--curricula", "none")
    do("evaluate", "--seeds", "0", "1", "--curricula", "none")
    do("evaluate", "--seeds", "0", "1")
    rows = quality.read_results()
    assert [(row["seed"], row["curriculum"]) for row in rows] == [*((0, c) for c in CURRICULA), (1, "none")]
    assert rows[:3] == before
    assert all((row["accuracy_before_dp_sgd"] is None) == (row["curriculum"] == "none") for row in rows)
    assert all(row["steps"] == 2 and row["machine"]["torch"] == torch.__version__ for row in rows)
    assert str(tmp_path) not in quality.RESULTS.read_text()
    do("evaluate", "--seeds", "0", "--curricula", "none", "--scored_on", "train")
    chosen_by = quality.read_results()[-1]
    assert chosen_by["evaluation"]["scored_on"] == "train" and chosen_by["seed"] == 0
    do("table")  # without it
    assert quality.DOCUMENT.read_text().count("| 4 | ") == 3

    quality.RESULTS.unlink()
    scored, accuracy = [], quality.accuracy
    monkeypatch.setattr(quality, "accuracy", lambda *given: scored.append(given[0]) or accuracy(*given))
    do("evaluate", "--seeds", "0", "--curricula", "spatial")
    assert len(scored) == 1  # the release; what came before DP-SGD is known
    assert quality.read_results() == [rows[1]]

    (base / "spatial" / "release" / "samples.png").write_bytes(b"other")
    quality.RESULTS.unlink()
    with pytest.raises(IntegrityError, match="samples.png"):  # what does not verify gets no row
        do("evaluate", "--seeds", "0", "--curricula", "spatial")


def check_releases(base):
    """Each verifies by itself, and its ledger holds all that it rests on, as it was asked."""
    stages = {"none": [], "spatial": ["central_images"], "spatial_frequency": ["central_images", "frequency_features"]}
    (place,) = base.parents[1].glob("shared_*/seed0")
    shared = ledger_rows(place / "private")
    noise = []
    for name, expected in stages.items():
        assert verify(base / name / "release")[1] == []
        rows = ledger_rows(base / name / "private")
        assert [row["stage"] for row in rows] == [*expected, "dp_sgd"]
        assert all(row in shared for row in rows[:-1])
        receipt = json.loads((base / name / "release" / "privacy_receipt.json").read_text())
        assert 3.9 < receipt["claimed_epsilon"]["pld"]["epsilon"] <= 4
        for warmed_up in (base / name / "private").glob("warmed_up_*"):
            assert weights(warmed_up) != weights(base / name / "release")
        noise.append(rows[-1]["noise_multiplier"])
    assert noise[0] < noise[1] < noise[2]  # who asked more has less left


def test_a_changed_recipe_is_another_run(quality, tmp_path):
    def recipes(flags):
        config = quality.load_config([*QUICK_FLAGS, *flags])
        return quality.recipe_of(config)

    assert recipes([]) == recipes(["--seed", "3", "--output_dir", "x", "--curriculum", "mix"])
    assert recipes([]) != recipes(["--max_train_steps", "3"])
    assert recipes([]) != recipes(["--spatial_noise_multiplier", "7"])


def test_recipes_that_begin_alike_share_what_precedes_dp_sgd(quality, tmp_path, monkeypatch):
    def run(*flags):
        arguments = {"seeds": [0], "epsilons": [4.0], "curricula": ["mix"], "preset": "cpu", "dataset_name": None}
        return next(quality.all_runs(quality.argparse.Namespace(**arguments, output_dir=tmp_path, flags=list(flags))))

    one, other = run(), run("--max_train_steps", "3", "--lr_scheduler", "linear", "--train_batch_size", "900")
    assert one.shared == other.shared and one.base != other.base
    assert one.shared != run("--frequency_noise_multiplier", "7").shared


def test_the_presets_are_what_they_say(quality):
    gpu = quality.PRESETS["gpu"].flags
    for epsilon in (1.0, 10.0):
        config = quality.load_config([*gpu[epsilon], "--seed", "0"])
        assert (config.target_epsilon, config.max_train_steps, config.sample_rate) == (epsilon, 2100, "1/14")


def test_table_shows_means_and_paired_differences(quality):
    rng = np.random.default_rng(0)
    scores = {name: rng.uniform(0.2, 0.9, 3).round(4) for name in ("none", "spatial", "mix")}
    machine = {"cpu": "A CPU", "cores": 2, "gpu": None, "torch": "2.0"}
    rows = [
        {"epsilon": 1.0, "seed": seed, "curriculum": name, "accuracy": float(score), "machine": machine,
         "dp_sgd_seconds": 60.0 * (seed + 1), "accuracy_before_dp_sgd": None if name == "none" else float(score) / 2}
        for name, of_seed in scores.items()
        for seed, score in enumerate(of_seed)
        if (name, seed) != ("mix", 1)
    ]  # fmt: skip
    table = quality.table_of(rows, ["none", "spatial", "frequency", "mix"])
    assert quality.write_table(quality.DOCUMENT, "quality_cpu", table) == table
    text = quality.DOCUMENT.read_text()
    assert text == f"before\n<!-- quality_cpu -->\n{table}<!-- /quality_cpu -->\nafter\n"
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| 1 ")
    ]
    assert [line[5] for line in lines] == ["3", "3", "2"]

    def words(values):
        values = 100 * np.asarray(values)
        return f"{values.mean():.2f} (s.e. {(values.var(ddof=1) / len(values)) ** 0.5:.2f})"

    none, spatial, mix = scores["none"], scores["spatial"], scores["mix"][[0, 2]]
    assert [line[3] for line in lines] == [words(none), words(spatial), words(mix)]
    assert [line[2] for line in lines] == ["", words(spatial / 2), words(mix / 2)]
    assert [line[4] for line in lines] == ["", words(spatial - none), words(mix - none[[0, 2]])]
    assert [line[6] for line in lines] == ["2.0", "2.0", "2.0"]
    assert "Trained on A CPU, 2 cores, torch 2.0." in table
    with pytest.raises(SystemExit, match="lacks the lines"):
        quality.write_table(quality.DOCUMENT, "quality_gpu", table)
    more = [{**row, "accuracy": row["accuracy"] + (0.01, 0.02, 0.06)[row["seed"]]} for row in rows]
    paired = quality.paired_table_of(rows, more, ["spatial", "mix", "frequency"])
    cells = [line.split(" | ") for line in paired.splitlines()[2:4]]
    assert [cell[4:] for cell in cells] == [["3.00 (s.e. 1.53)", "0, 1, 2 |"], ["3.50 (s.e. 2.50)", "0, 2 |"]]
