# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Three histories of a data set, from command lines to receipts: each sum is that of dp_accounting alone, over all
queries that were ever put to its images."""

import json

import datasets
import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from PIL import Image

from diffusers_dp import verify
from diffusers_dp.cli import main as cli
from support.runs import load, write_public


NAMES, DELTA = ["left", "empty", "right"], "0.001"
IMAGES = "--resolution 8 --num_channels 1 --num_train_images 24 --validation_size 6 --accountant rdp".split()
EVOLVE = (
    "--generator public_images --candidates_per_class 4 --variation_strengths 0.5 --images_per_class 4 "
    "--skip_preflight --target_epsilon 0.5 --train_on_result --diffusion_steps 1 --block_out_channels 8,16 "
    "--num_inference_steps 1"
).split()
TRAIN = (
    "--max_train_steps 2 --train_batch_size 8 --noise_multiplicity 1 --block_out_channels 8,16 --skip_preflight "
    "--num_inference_steps 1 --target_epsilon 1 --objective edm"
).split()


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A data set of 30 images of 10 patients, and commands that are given its name and its ledger."""
    rng = np.random.default_rng(0)
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=NAMES),
        "patient": datasets.Value("int64"),
    }
    for split, count in (("train", 30), ("test", 12)):
        columns = {
            "image": [Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)) for _ in range(count)],
            "label": [number % 3 for number in range(count)], "patient": [number // 3 for number in range(count)],
        }  # fmt: skip
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        table.to_parquet(tmp_path / "images" / f"{split}-00000-of-00001.parquet")
    return House(tmp_path, monkeypatch)


class House:
    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.books = ["--dataset_id", "scans", "--ledger_dir", str(folder / "ledgers")]

    def train(self, method, name, *flags):
        given = ["--dataset_name", str(self.folder / "images"), *IMAGES, "--target_delta", DELTA, *self.books, *flags]
        load(method, self.monkeypatch).main([*given, "--output_dir", str(self.folder / name)])
        return self.folder / name / "release"

    def evolve(self, name, *flags):
        return self.train("pe", name, *EVOLVE, *write_public(self.folder / f"public {name}", tuple(NAMES))[:2], *flags)

    def draw(self, release, name):
        cli(["sample", str(release), "--num_images", "12", "--output_dir", str(self.folder / name)])
        return self.folder / name

    def rows(self):
        """All queries that the ledger holds, in its order."""
        (path,) = (self.folder / "ledgers").glob("*.jsonl")
        return [line for line in map(json.loads, path.read_text().splitlines()) if "stage" in line]


def sum_of(events, interval):
    """By dp_accounting alone."""
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, interval)
    for event in events:
        query = dp.GaussianDpEvent(event["noise_multiplier"])
        if event["sampling_probability"] < 1:
            query = dp.PoissonSampledDpEvent(event["sampling_probability"], query)
        accountant.compose(query, event["steps_reserved"])
    return accountant.get_epsilon(float(DELTA))


def check(release, rows):
    """The receipt counts these queries and no others, and verifies."""
    receipt, problems = verify.verify(release)
    listed = [event for each in (receipt, *receipt["prior_releases"]) for event in each["events"]]
    dataset = receipt["dataset"]
    interval, claimed = dataset["value_discretization_interval"], dataset["epsilon_of_all_releases"]["pld"]
    assert problems == []
    assert sorted(event["stage"] for event in listed) == sorted(row["stage"] for row in rows)
    assert claimed == pytest.approx(sum_of(listed, interval), abs=1e-6)
    assert claimed == pytest.approx(sum_of(rows, interval), abs=1e-6)
    return receipt


def test_releases_of_which_one_begins_with_another(house):
    """Votes, a model that learned the voted images first, and a third model that learned what the second drew."""
    first = house.evolve("first")
    check(first, house.rows())
    learns = ["--public_steps", "1", "--expert", "public_batch_size=4"]
    second = house.train("dp_diffusion", "second", *TRAIN, *learns, "--public_dataset_name", str(first))
    (origin,) = check(second, house.rows())["public_inputs"]
    assert origin["epsilon"] == verify.verify(first)[0]["claimed_epsilon"]["pld"]["epsilon"]
    drawn = house.draw(second, "drawn")
    third = house.train("dp_diffusion", "third", *TRAIN, *learns, "--public_dataset_name", str(drawn))
    receipt = check(third, house.rows())
    assert [len(prior["events"]) > 0 for prior in receipt["prior_releases"]] == [True, True]
    assert receipt["public_inputs"][0]["began_with"][0]["dataset_id"] == "scans"


def test_trainings_on_whole_patients(house):
    """A training, and a second one that counts both; whole patients."""
    patients = ["--unit_column", "patient", "--num_train_units", "10"]
    house.train("dpdm", "first", *TRAIN, *patients, "--train_batch_size", "4")
    second = house.train("dpdm", "second", *TRAIN, *patients, "--train_batch_size", "4")
    receipt = check(second, house.rows())
    assert [prior["num_images"] for prior in receipt["prior_releases"]] == [10]
    assert {prior["unit_of_privacy"] for prior in receipt["prior_releases"]} == {"patient"}
