# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--noise_bands`: what the plan chooses and says, and runs that are interrupted, resumed, refused."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from datasets import Features, Value
from dp_accounting.rdp import RdpAccountant
from PIL import Image

from diffusers_dp.commands.plan import describe_step
from diffusers_dp.data.images import PublicFacts, listing_of
from diffusers_dp.data.records import DataSource
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.mechanisms.band_coefficients import Workload, root_mean_square_error
from diffusers_dp.methods.method_flags import DPDMConfig
from diffusers_dp.privacy.passages import Turns
from diffusers_dp.runs.plan import dp_sgd_row, plan_run
from diffusers_dp.runs.run_ledger import new_ledger
from diffusers_dp.verify import verify
from support.few import few
from support.flags import RESUME, SHORT_RUN
from support.images import labelled, save_parquet, write_dataset
from support.runs import NUM_IMAGES, interrupted, load, read_ledger, write_images


FACTS = PublicFacts(60_000, (1, 8, 8), ("a", "b"))


def plan(**flags):
    flags = {"accountant": "rdp", "max_train_steps": 600, "train_batch_size": 512, **flags}
    config = DPDMConfig(**{"target_epsilon": 10.0, **flags})
    return config, plan_run(config, FACTS)


def test_the_least_error_is_chosen_and_all_are_said():
    config, result = plan(noise_bands="auto", lr_scheduler="cosine", ema_decay=0.99)
    errors, row = result.noise_errors, result.rows["dp_sgd"]
    assert list(errors) == [1, 4, 8, 16] and errors[16] == min(errors.values()) and row.mechanism.num_groups == 16
    assert errors[16] == pytest.approx(
        row.noise_multiplier * root_mean_square_error(row.mechanism.coefficients, Workload(600, "cosine", 0, 0.99))
    )
    said = re.search(r"against independent noise: (.*)", result.table)[1]
    assert said == ", ".join(f"{number}: {error / errors[1]:.1%}" for number, error in errors.items())
    assert "16 groups of images take turns, 38 at most to a group" in result.table
    assert "--max_train_steps 608 would cost no more than 600" in result.table and row.steps == 600
    more, longer = plan(noise_bands="16", max_train_steps=608)
    assert longer.rows["dp_sgd"].noise_multiplier == row.noise_multiplier
    assert "would cost no more" not in longer.table
    assert "15 x" not in describe_step(result, result.sampling, 1000)
    assert "past noise in memory: 15,000 numbers, 0.06 MB" in describe_step(result, result.sampling, 1000)


@pytest.mark.parametrize("accountant", few(["rdp", "pld", "prv"]))
def test_the_plan_meets_its_target_by_every_accountant(accountant):
    config, result = plan(accountant=accountant, noise_bands="4", restart_slack=7)
    assert 9.97 <= result.epsilon <= 10
    rows = [result.rows[name] for name in ("dp_sgd", "restart_slack")]
    assert [row.steps for row in rows] == [600, 7] and rows[0].sampling_probability == 4 * 512 / 60_000
    counted = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    event = dp.PoissonSampledDpEvent(rows[0].sampling_probability, dp.GaussianDpEvent(rows[0].noise_multiplier))
    counted.compose(event, math.ceil(607 / 4))
    assert result.ledger.epsilon("rdp") == pytest.approx(counted.get_epsilon(result.ledger.target_delta), rel=0.01)


@pytest.mark.parametrize("bands", ["1", "8"])
def test_dp_sgd_goes_on_with_its_bands(bands):
    config, result = plan(noise_bands="4")
    ledger = new_ledger(None, config, FACTS)
    row = dp_sgd_row(config, result, ledger)
    ledger.take_step(row, reserve_steps=2)
    assert dp_sgd_row(*plan(noise_bands="4"), ledger) == row, "with its groups, whatever the new plan drew"
    assert dp_sgd_row(*plan(noise_bands="auto"), ledger) == row
    with pytest.raises(UsageError, match=f"--noise_bands {bands} is not what this run began with, 4"):
        dp_sgd_row(*plan(noise_bands=bands), ledger)
    for change in ({"max_grad_norm": 0.5}, {"noise_multiplicity": 3}, {"train_batch_size": 500}):
        with pytest.raises(IntegrityError, match="clip norm|noise multiplicity|sampling probability"):
            dp_sgd_row(*plan(noise_bands="4", **change), ledger)


# Runs.


@pytest.fixture
def flags(tmp_path):
    more = "--noise_bands 4 --train_batch_size 4 --max_train_steps 6".split()
    return [*SHORT_RUN, *more, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]


@pytest.fixture
def turns(monkeypatch):
    """The group of each step, as the door took it."""
    taken, units = [], Turns.units
    monkeypatch.setattr(Turns, "units", lambda self, position: (taken.append(position % 4), units(self, position))[1])
    return taken


def test_an_interrupted_run_goes_on_with_its_groups(flags, tmp_path, monkeypatch, turns):
    """A crash in the fourth step loses two: the checkpoint says 2, the ledger 4, and group 0 is next. A file that is
    missing moves no other."""
    script = load("dpdm", monkeypatch)
    interrupted(script, monkeypatch, flags, 4)
    assert turns == [0, 1, 2, 3]
    turns.clear()
    images = sorted((tmp_path / "images").rglob("*.png"))
    images[0].unlink()
    images[1].write_bytes(b"broken")
    script.main([*flags, *RESUME])
    assert turns == [0, 1, 2, 3], "by position in the ledger: by the checkpoint's step, it would begin with 2"
    header, rows = read_ledger(tmp_path / "run")
    assert [row["first_step"] for row in rows] == [0, 2, 4, 6] and {row["bands"] for row in rows} == {4}
    assert len({json.dumps(row["query"]) for row in rows}) == 1, "one permutation"
    release = tmp_path / "run" / "release"
    assert verify(release)[1] == []
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    query = receipt["events"][0]["query"]
    assert query["ids"] == "path" and len(query["group_key"]) == 32
    step = dp.PoissonSampledDpEvent(4 * 4 / 30, dp.GaussianDpEvent(rows[0]["noise_multiplier"]))
    accountant = RdpAccountant(receipt["claimed_epsilon"]["rdp"]["orders"], dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(step, 2)  # 8 reserved steps of 4 groups
    assert receipt["claimed_epsilon"]["rdp"]["epsilon"] == pytest.approx(accountant.get_epsilon(receipt["delta"]))


def test_rows_that_are_listed_otherwise_are_refused(flags, tmp_path, monkeypatch):
    """A row's number is its id, so that a row that is gone would move all after it to other groups."""
    script = load("dpdm", monkeypatch)
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 1, 8, 8), dtype=np.uint8)
    folder = write_dataset(tmp_path / "table", images, np.arange(NUM_IMAGES) % 2, ["left", "right", "empty"][:2])
    place = flags.index("--train_data_dir")
    flags = [*flags[:place], "--dataset_name", str(folder), *flags[place + 2 :], "--class_names", "left,right"]
    flags += ["--num_train_images", str(NUM_IMAGES)]
    interrupted(script, monkeypatch, flags, 4)
    write_dataset(folder, images[1:], np.arange(1, NUM_IMAGES) % 2, ["left", "right"])
    with pytest.raises(UsageError, match="other ids.*--noise_bands"):
        script.main([*flags, *RESUME])
    write_dataset(folder, images, np.arange(NUM_IMAGES) % 2, ["left", "right"])
    script.main([*flags, *RESUME])
    assert verify(tmp_path / "run" / "release")[1] == []


def test_all_that_gives_images_their_ids_is_in_the_listing(tmp_path):
    """Parquet files of one data set, its split, unit and key."""
    image = Image.new("L", (8, 8))
    columns = {"image": [image] * 4, "label": [0] * 4, "a": list("kmno"), "b": list("wxyz")}
    features = Features({**labelled(["left"]), "a": Value("string"), "b": Value("string")})
    folder = Path(save_parquet(tmp_path / "table", columns, features))
    save_parquet(folder, columns, features, split="test")
    data = DataSource(dataset_name=str(folder), class_names=("left",), num_train_images=4)
    facts = PublicFacts(4, (1, 8, 8), ("left",))
    listing = listing_of(data, facts)
    named = [
        replace(data, **{flag: column}) for flag in ("unit_column", "key_column") for column in ("a", "b")
    ] + [replace(data, train_split="test")]  # fmt: skip
    listings = [listing_of(each, facts) for each in named] + [listing_of(data, replace(facts, ids="column"))]
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert listing_of(replace(data, dataset_name=str(tmp_path / "elsewhere")), facts) == listing
    for path in (folder / "data").glob("train*"):
        path.rename(path.with_name(path.name.replace("00000-of-00001", "00000-of-00002")))
    listings.append(listing_of(data, facts))
    save_parquet(tmp_path / "elsewhere", {**columns, "b": ["longer than before"] * 4}, features)
    listings.append(listing_of(replace(data, dataset_name=str(tmp_path / "elsewhere")), facts))
    assert len({listing, *listings}) == 1 + len(listings)


@pytest.mark.parametrize("table", ["metadata.csv", "labels.csv"])
def test_an_id_of_the_same_length_in_a_table_beside_images_is_in_the_listing(tmp_path, table):
    image = tmp_path / "1.png"
    Image.new("L", (8, 8)).save(image)
    place = tmp_path if table == "metadata.csv" else tmp_path / table
    data = DataSource(dataset_name=str(place), unit_column="patient", num_train_images=1, num_train_units=1)
    listings = []
    for unit in ("p1", "p2", "p1"):
        (tmp_path / table).write_text(f"file_name,patient\n1.png,{unit}\n")
        listings.append(listing_of(data, PublicFacts(1, (1, 8, 8), None)))
    assert listings[0] == listings[2] != listings[1]
