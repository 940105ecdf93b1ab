# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The runner of rows: cases in their order, one process a stage, a row for each case once."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module

import datasets
import numpy as np
import PIL.Image
import pytest
import torch

from diffusers_dp.evaluation.images import ImageSet
from support.images import encode, grey, image_bytes, write_dataset
from support.places import ROOT


CASES = """
- {name: merf, method: dp_merf, data: noise, epsilons: [10, 1], seeds: [3, 4], num_images: 30, minutes: 5,
   flags: "--num_features 20 --generator_steps 2 --expert generator_batch_size=4,generator_channels=4
   --num_train_images 60 --class_names a,b --resolution 8
   --num_channels 1 --accountant rdp"}
- {name: later, method: dp_merf, data: noise, seeds: [3]}
"""


@pytest.fixture
def rows(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = import_module("rows")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results" / "rows.jsonl")
    monkeypatch.setattr(module, "EXAMPLES", tmp_path / "results" / "examples.jsonl")
    (tmp_path / "cases.yaml").write_text(CASES)
    return module


def test_releases_stay_outside_of_the_repository(rows, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        rows.main(["releases", str(ROOT / "benchmarks" / "given"), "--cases", str(tmp_path / "cases.yaml")])
    assert stopped.value.code == 2 and "outside of the repository" in capsys.readouterr().err


@pytest.fixture
def noise(tmp_path):
    """A data set of two classes, without anything to learn."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "noise"
    for split, number in (("train", 60), ("test", 30)):
        images = rng.integers(0, 256, (number, 1, 8, 8), dtype=np.uint8)
        write_dataset(folder, images, np.arange(number) % 2, ["a", "b"], split)
    return folder


@pytest.mark.slow
def test_from_a_case_to_a_row_once(rows, tmp_path, noise, capsys):
    arguments = ["run", str(tmp_path / "cases.yaml"), "--only", "merf", "--data", f"noise={noise}", "--jobs", "2"]
    arguments += ["--output_dir", str(tmp_path / "runs")]
    assert rows.main(arguments) == 0, [path.read_text() for path in tmp_path.glob("runs/*/*.log")]
    made = rows.read_rows(rows.RESULTS)
    assert len(made) == 4 and {row["epsilon"] for row in made} == {1.0, 10.0}
    for row in made:
        assert row["num_drawn"] == 30 and row["epsilon_spent"] <= row["epsilon"] and len(row["accuracy"]) == 3
        assert set(row["minutes"]) == {"train", "verify", "draw", "score"} and len(row["receipt_sha256"]) == 64
        of_training = row["minutes_of_training"]
        assert {"frequency features", "generator", "samples and release"} <= set(of_training), of_training
        assert sum(of_training.values()) <= row["minutes"]["train"] + 0.01
    left = {path.name for path in tmp_path.glob("runs/*/*")}
    assert {name for name in left if not name.startswith("minutes") and not name.endswith(".log")} == {"run"}
    assert rows.main(arguments) == 0 and rows.read_rows(rows.RESULTS) == made, "nothing is done again"
    assert "4 cases, 4 of which have a row" in capsys.readouterr().out
    assert rows.main(["check"]) == 0 and "4 receipts of 4 rows recomputed: 0 problems" in capsys.readouterr().out


def test_an_entrant_pays_for_all_releases_at_the_delta_of_the_images(rows):
    too_dear = import_module("entry").too_dear
    receipt = {"accountant": "pld", "claimed_epsilon": {"pld": {"epsilon": 9.9}}, "delta": 1e-6}
    assert too_dear(receipt, 10, 60_000) == ""
    small = {**receipt, "delta": 1e-3, "public_facts": {"num_images": 50}}  # whatever the receipt says of N
    sum_of_two = {**receipt, "dataset": {"epsilon_of_all_releases": {"pld": 10.5}}}
    priced = {**receipt, "public_inputs": [{"epsilon": 1.0}]}
    assert all(too_dear(each, 10, 60_000) for each in (small, sum_of_two, priced))


def test_a_runner_that_is_stopped_ends_its_commands(rows, tmp_path):
    runner = rows.Runner({}, tmp_path, rows.RESULTS)
    wait = [sys.executable, "-c", "print('there', flush=True); import time; time.sleep(600)"]
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(runner._call, wait, tmp_path / "minutes.json", "train", None)
        while not runner._processes and not asked.done():
            time.sleep(0.01)
        runner.stop()
        with pytest.raises(rows.Stopped, match="exit code -15"):
            asked.result()
    assert not runner._processes
    with pytest.raises(rows.Stopped, match="exit code -15"):  # one that starts meanwhile
        runner._call(wait, tmp_path / "minutes.json", "train", None)


def test_an_entrant_cannot_draw_more_images_than_others(rows, tmp_path, monkeypatch):
    called = []

    def call(self, command, minutes, stage, core, seconds=None):
        called.append(command)
        return '{"num_drawn": 5000}'

    monkeypatch.setattr(rows.Runner, "_call", call)
    (tmp_path / "privacy_receipt.json").write_text(json.dumps({
        "accountant": "pld", "claimed_epsilon": {"pld": {"epsilon": 1}}, "delta": 0, "status": "proven",
        "public_inputs": [{"kind": "public images", "name": "digits"}],
    }))  # fmt: skip
    case = rows.Case("a", "", "d", 10.0, 0, draw=("--num_images", "50000", "--seed", "9"))
    runner = rows.Runner({"d": "there"}, tmp_path, rows.RESULTS, most_images=case.num_images)
    row = runner.row_of(tmp_path, case, tmp_path / "drawn", tmp_path / "minutes.json", None)
    assert (row["status"], row["public"]) == ("proven", "digits")
    sample, score = called[1:]
    counts = dict(zip(sample, sample[1:], strict=False))  # as the command reads it: the last one counts
    assert (counts["--num_images"], counts["--seed"]) == ("5000", "0")
    assert score[score.index("--most_images") + 1] == "5000"


@pytest.mark.parametrize("shards", [[], [1], [0, 1], [0, 1, 2]])
def test_an_interrupted_drawing_is_finished_before_it_is_scored(rows, tmp_path, monkeypatch, shards):
    """Its card, its first shard and, with several processes, its last one may be there before others."""
    called = []
    drawn = tmp_path / "drawn"
    (drawn / "data").mkdir(parents=True)
    for name in ("README.md", "sampling_parameters.json", *(f"data/train-{i:05d}-of-00003.parquet" for i in shards)):
        (drawn / name).touch()

    def call(self, command, minutes, stage, core, seconds=None):
        called.append(stage)
        return json.dumps({"num_drawn": 1500 if stage == "score" and complete else 1000})

    monkeypatch.setattr(rows.Runner, "_call", call)
    (tmp_path / "privacy_receipt.json").write_text(json.dumps({
        "accountant": "pld", "claimed_epsilon": {"pld": {"epsilon": 1}}, "delta": 0, "status": "proven",
        "public_inputs": [],
    }))  # fmt: skip
    case, runner = (
        rows.Case("a", "", "d", 10.0, 0, num_images=1500),
        rows.Runner({"d": "there"}, tmp_path, rows.RESULTS),
    )
    draw = partial(runner.row_of, tmp_path, case, drawn, tmp_path / "minutes.json", None)
    complete = False
    with pytest.raises(rows.Stopped, match="1,000 of 1,500"):
        draw()
    assert called == ["verify", *["draw"] * (len(shards) < 3), "score"]
    complete = True
    row = draw()
    assert (row["num_asked"], row["num_drawn"]) == (1500, 1500)


def test_a_case_that_fails_leaves_no_row_and_others_go_on(rows, tmp_path, monkeypatch):
    cases = rows.read_cases(tmp_path / "cases.yaml")[:3]

    def row(self, case, core):
        if case.epsilon == 1:
            raise rows.Stopped("train ended with exit code 2")
        return {"key": case.key, "scored_on": "test", "case": case.name, "data": case.data, "epsilon": case.epsilon,
                "seed": case.seed, "accuracy": {"cnn": 0.5}, "frechet": 1.0}  # fmt: skip

    monkeypatch.setattr(rows.Runner, "row", row)
    assert rows.run(cases, rows.Runner({}, tmp_path, rows.RESULTS), jobs=2) == 1
    assert len(rows.read_rows(rows.RESULTS)) == 2 and rows.left_of(cases, "test", rows.RESULTS) == [cases[1]]
    assert rows.left_of(cases, "train", rows.RESULTS) == cases


def test_the_pictures_of_the_leaderboard_are_those_of_the_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    board = import_module("board")
    rows = [json.loads(line) for line in (ROOT / "benchmarks" / "results" / "rows.jsonl").read_text().splitlines()]
    for name in ("", "_mnist", "_cifar10"):
        shown = (
            board.digest_of_rows(board.pictured(rows, name[1:]))
            if name
            else board.digest_of_places(board.places_in(rows))
        )
        with PIL.Image.open(ROOT / "docs" / "images" / f"leaderboard{name}.png") as picture:
            assert picture.text["Description"] == shown, f"draw leaderboard{name}.png again"


def test_soft_labels_have_a_column_of_their_own(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    board = import_module("board")
    row = {"case": "board Ours", "method": "moments", "data": "mnist", "epsilon": 1.0, "scored_on": "test",
           "accuracy": {"cnn": 0.9}, "minutes": {"train": 1.0}, "status": "proven", "public": ""}  # fmt: skip
    judged = {**row, "case": "judge Ours", "accuracy": {"cnn": 0.8}, "accuracy_on_soft_labels": {"cnn": 0.95}}
    others = [{**judged, "scored_on": "train"}, {**judged, "data": "cifar10"}, {**judged, "case": "judge Another"}]
    (place,) = board.places_in([row, judged, {**judged, "accuracy_on_soft_labels": {"cnn": 0.97}}, *others])
    assert (place.accuracy, place.seeds, place.soft) == (90.0, 1, 96.0)
    assert "| Ours |  | 90.0 | 96.0 | 1.0 |" in board.leaderboard_table([place], "mnist")


def test_minutes_are_those_of_one_core_whatever_the_machine(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    board, runner = import_module("board"), import_module("runner")
    row = {"minutes": {"train": 12.0, "draw": 2.0}, "machine": {"gflops": 50.0}}
    assert board.core_minutes(row, "train", "draw", "score") == 7.0
    stated = [{**row, "machine": {}}, {**row, "entered": True}]
    assert [board.core_minutes(each, "train") for each in stated] == [12.0, 12.0]
    threads = torch.get_num_threads()
    assert runner.machine()["gflops"] > 0 and torch.get_num_threads() == threads


def test_only_images_with_a_hash_are_scored(monkeypatch, tmp_path):
    """A card has no hash, and `datasets` reads the files that it names."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    scorer = import_module("scorer")
    for folder, level in (("data", 7), (".cache", 9)):
        (tmp_path / folder).mkdir()
        images = datasets.Dataset.from_dict({"image": image_bytes(encode(grey(level)))})
        images = images.cast_column("image", datasets.Image())
        images.to_parquet(tmp_path / folder / "train-00000-of-00001.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: .cache/train-00000-of-00001.parquet\n---\n"
    )
    assert scorer.read(tmp_path, "train").images.max() == 9
    (tmp_path / "privacy_receipt.json").write_text("{}")
    assert scorer.read(tmp_path, "train").images.max() == 7


def test_the_scorer_tells_real_images_from_noise(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    scorer = import_module("scorer")
    monkeypatch.setattr(scorer, "CNN_STEPS", 60)
    rng = np.random.default_rng(0)

    def images(number, noise):
        labels = np.arange(number) % 2
        dark = 60 + 120 * labels[:, None, None, None]
        pixels = rng.normal(128 if noise else dark, 20, (number, 1, 8, 8)).clip(0, 255).astype(np.uint8)
        return ImageSet(pixels, labels)

    train, test = images(300, False), images(100, False)
    drawn = images(600, False)
    by_class = drawn.subset(np.argsort(drawn.labels, kind="stable"))
    monkeypatch.setattr(scorer, "NUM_REAL", 300)
    assert scorer.score(by_class, train, test)["recall"] > 0.5, "all classes are compared"
    good, bad = scorer.score(images(300, False), train, test), scorer.score(images(300, True), train, test)
    assert min(good["accuracy"].values()) > 0.95 > 0.8 > bad["accuracy"]["cnn"]
    assert good["frechet"] < bad["frechet"] and good["recall"] > bad["recall"]
    assert json.dumps(good)
