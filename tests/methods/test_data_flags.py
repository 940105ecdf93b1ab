# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that name data: no run writes among the images, and what would be ignored is refused."""

from pathlib import Path

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.feta_pro import FETAProConfig


CLASSES = ["--class_names", "a,b"]
SOURCES = {
    "train_data_dir": CLASSES, "dataset_name": CLASSES, "public_data_dir": [], "public_dataset_name": [],
}  # fmt: skip
LEDGER = ["--dataset_id", "scans", "--ledger_dir"]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Works among `data/a`, a link to it, and `runs`; nothing else is there afterwards."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data/a", "runs/one/release/images", "runs/one/images"):
        Path(folder).mkdir(parents=True)
    Path("link").symlink_to("data")
    before = sorted(tmp_path.rglob("*"))
    yield
    assert sorted(tmp_path.rglob("*")) == before


def refusal(argv: list[str]) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(argv)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("flag", SOURCES)
@pytest.mark.parametrize("place", ["data", "data/run", "data/a/run", "link/run", "runs/../data/new/run"])
def test_a_run_among_the_images_is_refused(flag, place):
    given = [f"--{flag}", "data", *SOURCES[flag]]
    words = f"--output_dir {place} lies in --{flag} data, "
    assert refusal([*given, "--output_dir", place]).startswith(words)
    assert refusal([*given, "--output_dir", place, "--dry_run"]).startswith(words)


def test_the_default_folder_of_a_run_lies_in_the_data_that_one_stands_in(monkeypatch):
    monkeypatch.chdir("data")
    assert refusal(["--train_data_dir", ".", *CLASSES]).startswith(
        "--output_dir runs/feta_pro lies in --train_data_dir ."
    )


@pytest.mark.parametrize("flag", SOURCES)
@pytest.mark.parametrize("place", ["data", "data/ledgers"])
def test_a_ledger_among_the_images_is_refused(flag, place):
    given = [f"--{flag}", "data", *SOURCES[flag], *LEDGER, place]
    assert refusal(given).startswith(f"--ledger_dir {place} lies in --{flag} data, ")


@pytest.mark.parametrize("flag", SOURCES)
def test_images_where_a_run_writes_are_refused(flag):
    """A release is replaced as a whole, and what a refused start has begun is removed."""
    for folder in ("runs/one/release", "runs/one/release/images"):
        given = [f"--{flag}", folder, *SOURCES[flag], "--output_dir", "runs/one"]
        assert refusal(given).startswith(f"--output_dir runs/one is where --{flag} {folder} lies in release/")


@pytest.mark.parametrize("flag", SOURCES)
def test_a_folder_that_holds_data_and_runs_may_be_one(flag):
    """Of --output_dir a run touches private/, release/ and no_guarantee/ alone, and of --ledger_dir one file."""
    for place, source in ((".", "data"), ("runs/one", "runs/one/images"), ("database", "data"), ("runs/one", "data")):
        load_config([f"--{flag}", source, *SOURCES[flag], "--output_dir", place, *LEDGER, place])


OF_A_DATASET = ("dataset_config_name", "train_split", "image_column", "label_column")
OF_A_PUBLIC_ONE = ("public_dataset_config_name", "public_split", "public_image_column", "public_label_column")


@pytest.mark.parametrize("flag", OF_A_DATASET)
def test_what_only_a_dataset_has_needs_one(flag, tmp_path):
    for given in ([], ["--train_data_dir", "data", *CLASSES], ["--dry_run"]):
        assert refusal([*given, f"--{flag}", "x"]) == f"--{flag} needs --dataset_name: give both, or neither."
    load_config(["--dataset_name", "some/data", f"--{flag}", "x"])


@pytest.mark.parametrize("flag", OF_A_PUBLIC_ONE)
def test_what_only_a_public_dataset_has_needs_one(flag):
    assert f"--{flag} needs --public_dataset_name" in refusal(["--public_data_dir", "data", f"--{flag}", "x"])
    load_config(["--public_dataset_name", "some/data", f"--{flag}", "x"])


def test_a_folder_takes_the_place_of_a_recipe_s_dataset_with_its_columns(tmp_path_factory):
    recipe = tmp_path_factory.mktemp("recipes") / "recipe.yaml"
    recipe.write_text(
        "dataset_name: some/data\nimage_column: img\npublic_dataset_name: other/data\npublic_image_column: img\n"
    )
    load_config(
        ["--config", str(recipe), "--train_data_dir", "data/a", *CLASSES, "--public_data_dir", "runs/one/images"]
    )


@pytest.mark.parametrize("flag", ["class_names", "public_class_names"])
def test_a_wrong_label_set_is_told_what_is_wrong(flag):
    data = ["--dataset_name", "some/data", "--public_dataset_name", "other/data"]
    assert refusal([*data, f"--{flag}", "a,b,a"]).startswith(f"--{flag} names the class 'a' twice; ")
    for text in (",", ""):
        assert refusal([*data, f"--{flag}", text]).startswith(f"--{flag} is '{text}'; give each class once")


SHARES = ["--spatial_budget_share", "0.6", "--frequency_budget_share"]


def test_shares_that_leave_nothing_are_refused():
    expected = (
        "--spatial_budget_share 0.6 and --frequency_budget_share 0.6 are 1.2 of the budget together, which leaves"
    )
    assert refusal([*SHARES, "0.6"]).startswith(expected)
    assert "are 1 of the budget" in refusal([*SHARES, "0.4"])
    assert "--evaluation_reserve 0.15 are 1.05" in refusal([*SHARES, "0.3", "--evaluation_reserve", "0.15"])
    load_config([*SHARES, "0.39"])


def test_shares_of_what_is_not_asked_do_not_count():
    load_config([*SHARES, "0.6", "--curriculum", "spatial"])
    load_config([*SHARES, "0.6", "--target_epsilon", "inf"])
    load_config(["--spatial_noise_multiplier", "5", "--frequency_budget_share", "0.9", "--evaluation_reserve", "0.09"])


def test_names_on_the_hub_are_no_places():
    load_config(["--dataset_name", "some/data", "--output_dir", "some/data"])
    assert load_config(["--output_dir", "data"]) == FETAProConfig(output_dir="data")
