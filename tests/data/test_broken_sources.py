# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Shards that are gone or cut short, and folders that cannot be written: one sentence that names the flag, before
anything is spent."""

import os
from dataclasses import replace

import datasets
import numpy as np
import pytest
from PIL import Image

from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.data.records import DataSource
from diffusers_dp.errors import UsageError
from diffusers_dp.runs.folder import RunFolder


SHARDS = 3


def make_dataset():
    generator = np.random.default_rng(0)
    images = [Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8)) for _ in range(30)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    return datasets.Dataset.from_dict({"image": images, "label": [n % 2 for n in range(30)]}, features=features)


def saved(folder):
    make_dataset().save_to_disk(folder / "set", num_shards=SHARDS)
    return sorted((folder / "set").glob("*.arrow"))


def parquet(folder):
    (folder / "set").mkdir()
    for number in range(SHARDS):
        path = folder / "set" / f"train-{number:05}-of-{SHARDS:05}.parquet"
        make_dataset().shard(SHARDS, number).to_parquet(path)
    return sorted((folder / "set").glob("*.parquet"))


def cut_short(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def overwritten(path):
    """Its beginning and end stay, so that only reading it tells."""
    content = bytearray(path.read_bytes())
    content[300:-900] = bytes(len(content) - 1200)
    path.write_bytes(bytes(content))


def read(folder):
    data = DataSource(dataset_name=str(folder / "set"))
    return load_images(data, public_facts(data), folder / "cache")


@pytest.mark.parametrize("name", ["labels.tsv", "x.parquet", "images.zip"])
def test_a_file_that_is_no_table_is_not_looked_for_on_the_hub(tmp_path, name):
    (tmp_path / name).write_bytes(b"file_name\tlabel\n")
    with pytest.raises(UsageError, match="is one file, and no table that is read"):
        public_facts(DataSource(dataset_name=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("write", "damage"),
    [(saved, lambda path: path.unlink()), (saved, cut_short), (parquet, cut_short), (parquet, overwritten)],
)
def test_a_shard_that_is_gone_or_damaged(tmp_path, write, damage):
    shards = write(tmp_path)
    assert len(shards) == SHARDS and read(tmp_path).readable.sum() == 30
    damage(shards[1])
    with pytest.raises(UsageError, match="--dataset_name .* could not be opened") as refusal:
        read(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("place", ["/proc/run", "{tmp}/file/run"])
def test_a_folder_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--output_dir .* cannot be used"):
        RunFolder(place.format(tmp=tmp_path)).create()


@pytest.mark.parametrize("what", ["a pipe", "elsewhere"])
def test_a_saved_folder_names_its_own_regular_files(tmp_path, what):
    """Reading a pipe would never end, and public images may not be those of another folder."""
    first = saved(tmp_path)[0]
    if what == "a pipe":
        first.unlink()
        os.mkfifo(first)
    else:
        first.rename(tmp_path / first.name)
        state = tmp_path / "set" / "state.json"
        state.write_text(state.read_text().replace(first.name, f"../{first.name}"))
    data = DataSource(dataset_name=str(tmp_path / "set"), own_files=True)
    with pytest.raises(
        UsageError, match="--dataset_name .*(names no files that can be read|names files outside of it)"
    ):
        public_facts(data)
    if what == "elsewhere":  # the house's own data set may
        assert public_facts(replace(data, own_files=False)).num_images == 30
