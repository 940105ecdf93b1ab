# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that name data: no run writes among the images, and what would be ignored is refused."""

from pathlib import Path

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import load_config


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


@pytest.mark.parametrize("flag", SOURCES)
@pytest.mark.parametrize("place", ["data", "data/ledgers"])
def test_a_ledger_among_the_images_is_refused(flag, place):
    given = [f"--{flag}", "data", *SOURCES[flag], *LEDGER, place]
    assert refusal(given).startswith(f"--ledger_dir {place} lies in --{flag} data, ")


@pytest.mark.parametrize("flag", SOURCES)
def test_downloads_among_the_images_or_where_a_run_writes_are_refused(flag):
    given = [f"--{flag}", "data", *SOURCES[flag], "--output_dir", "runs/one", "--cache_dir"]
    assert refusal([*given, "link/cache"]).startswith(f"--cache_dir link/cache lies in --{flag} data, ")
    for place in ("runs/one/release", "runs/one/private/cache"):
        assert refusal([*given, place]).startswith(f"--cache_dir {place} is where --output_dir runs/one writes; ")
    load_config([*given, "runs/one/cache"])


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
    assert refusal([*data, f"--{flag}", "a,b,a"]).startswith(f"--{flag} is 'a,b,a'; give each class once")
    for text in (",", ""):
        assert refusal([*data, f"--{flag}", text]).startswith(f"--{flag} is '{text}'; give each class once")
