# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Local data sets of tables and of image files through the loader: service folders, splits and odd paths."""

import json
import socket

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diffusers_dp.cli import main
from diffusers_dp.data.sources import open_source
from diffusers_dp.errors import UsageError
from support.images import config_of, encode, grey, image_bytes, labelled, read_images, write_dataset


ODD = ("a[1]", "a?b", "a*b", "two words", "é", "é", "a#b", "50%20", "-dash", "'q\"", "{x,y}", "a]", "~tilde", "a:b")


def table(values):
    columns = {"image": image_bytes(*(encode(grey(value)) for value in values)), "label": [0] * len(values)}
    return datasets.Dataset.from_dict(columns, features=labelled(["a"]))


def write(path, *values):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        table(values).to_parquet(file)


def write_image(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(grey(value)))


def values(folder, tmp_path, **flags):
    arrays = read_images(config_of(str(folder), **flags), tmp_path)[1]
    return sorted(arrays.images[arrays.readable][:, 0, 0, 0].tolist())


@pytest.mark.parametrize("odd", ODD)
def test_odd_paths(tmp_path, odd):
    """Neighbours whose names the odd one would match as a pattern stay what they are: other data."""
    for place, value in ((odd, 10), ("a1", 90), ("aXb", 90), ("x", 90), ("y", 90)):
        write(tmp_path / "tables" / place / "data" / "train-00000-of-00001.parquet", value, value + 1)
        table([value, value + 1]).save_to_disk(tmp_path / "saved" / place)
        write_image(tmp_path / "images" / place / f"{place}.png", value)
        write_image(tmp_path / "images" / place / "b.png", value + 1)
        write_image(tmp_path / "described" / place / f"{place}.png", value)
        write_image(tmp_path / "described" / place / "b.png", value + 1)
        names = datasets.Dataset.from_dict({"file_name": [f"{place}.png", "b.png"], "label": ["a", "a"]})
        with (tmp_path / "described" / place / "metadata.parquet").open("wb") as file:
            names.to_parquet(file)
    for kind, flags in (("tables", {}), ("saved", {}), ("images", {}), ("described", {"class_names": "a"})):
        assert values(tmp_path / kind / odd, tmp_path / f"cache {kind}", **flags) == [10, 11], kind


def test_no_server_is_told_that_a_folder_is_read(tmp_path, monkeypatch):
    """`datasets` asks one to count each reading; without a network, every run would wait for it."""
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **options: asked.append(address))
    write(tmp_path / "tables" / "train.parquet", 10)
    table([10]).save_to_disk(tmp_path / "saved")
    write_image(tmp_path / "images" / "a.png", 10)
    for kind in ("tables", "saved", "images"):
        assert values(tmp_path / kind, tmp_path / f"cache {kind}") == [10]
        list(open_source(config_of(str(tmp_path / kind)).data).labels(tmp_path / f"labels {kind}"))
    assert asked == [] and datasets.config.HF_UPDATE_DOWNLOAD_COUNTS


@pytest.mark.parametrize("odd", ["a::b", "$HOME"])
def test_paths_that_datasets_cannot_read_are_refused(tmp_path, odd):
    write(tmp_path / odd / "train.parquet", 10)
    with pytest.raises(UsageError, match="--dataset_name .* rename the folder"):
        values(tmp_path / odd, tmp_path)


def test_a_card_below_a_pattern_is_refused(tmp_path):
    write(tmp_path / "a[1]" / "train.parquet", 10)
    (tmp_path / "a[1]" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: '*.parquet'\n---"
    )
    with pytest.raises(UsageError, match="--dataset_name .* rename the folder"):
        values(tmp_path / "a[1]", tmp_path)


@pytest.mark.parametrize("service", [".ipynb_checkpoints", "@eaDir", "__MACOSX", "#recycle", "lost+found"])
def test_service_folders_hold_no_tables_and_no_card_lets_them_in(tmp_path, service):
    write(tmp_path / "set" / "data" / "train-00000-of-00001.parquet", 10, 11)
    for place in (service, f"data/{service}", f"data/{service}/deep"):
        write(tmp_path / "set" / place / "train-00000-of-00001.parquet", 10, 11)
    assert values(tmp_path / "set", tmp_path) == [10, 11]
    card = f"---\nconfigs:\n- config_name: default\n  data_files: 'data/{service}/*.parquet'\n---"
    (tmp_path / "set" / "README.md").write_text(card)
    with pytest.raises(UsageError, match="--dataset_name .* names .*remove it"):
        values(tmp_path / "set", tmp_path)


@pytest.mark.parametrize(
    "places",
    [
        ("Training/0.parquet", "Testing/0.parquet"), ("TRAIN/a.parquet", "test/a.parquet"),
        ("train-00/0.parquet", "Val-00/0.parquet"), ("data/train.parquet", "data/valid.parquet"),
        ("Train-00000-of-00001.parquet", "Test-00000-of-00001.parquet"), ("x/training/a.parquet", "x/DEV/a.parquet"),
    ],
)  # fmt: skip
def test_splits_are_never_merged_in_any_spelling(tmp_path, places):
    for value, place in enumerate(places, 10):
        write(tmp_path / "set" / place, value)
    assert values(tmp_path / "set", tmp_path / "1") == [10]
    other = "validation" if "al" in places[1] or "DEV" in places[1] else "test"
    for spelling in {"validation": ("val", "validation", "dev"), "test": ("test", "Testing", "eval")}[other]:
        assert values(tmp_path / "set", tmp_path / spelling, train_split=spelling) == [11]


def test_a_card_that_merges_splits_is_refused(tmp_path):
    for value, place in enumerate(("Training", "Testing")):
        write(tmp_path / "set" / place / "0.parquet", value)
    (tmp_path / "set" / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: '**'\n---")
    with pytest.raises(UsageError, match="--dataset_name .* look like splits.* give --dataset_name .*Training"):
        values(tmp_path / "set", tmp_path)


@pytest.mark.parametrize(
    "folders", [("Training", "Validation"), ("train", "val"), ("TRAIN", "dev"), ("tr-train", "Valid")]
)
def test_a_split_of_image_files_by_any_spelling(tmp_path, folders):
    for value, name in enumerate(folders, 10):
        write_image(tmp_path / "set" / name / "a" / "1.png", value)
        write_image(tmp_path / "set" / name / "@eaDir" / "1.png", 99)
        write_image(tmp_path / "set" / ".cache" / name / "1.png", 99)
    assert values(tmp_path / "set", tmp_path / "1", class_names="a") == [10]
    for split in ("val", "validation", "dev", "valid", folders[1]):
        assert values(tmp_path / "set", tmp_path / split, class_names="a", train_split=split) == [11]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("x", "y")])
@pytest.mark.parametrize("splits", [(), ("train", "test"), ("test", "train")])
def test_the_classes_of_a_split_are_not_those_of_another(tmp_path, names, splits):
    """`datasets` takes the types of all splits from one file: of the first name, or as a card orders them."""
    folder, images = tmp_path / "set", np.zeros((3, 1, 8, 8), np.uint8)
    write_dataset(folder, images, [0, 0, 1], ("a", "b"))
    write_dataset(folder, images, [0, 0, 1], ("b", "a"), split="test")
    files = json.dumps([{"split": split, "path": f"{split}-*"} for split in splits])
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n"
    (folder / "README.md").write_text(card if splits else "")
    config = config_of(str(folder), class_names=",".join(names))
    if splits == ("test", "train"):
        with pytest.raises(UsageError, match="--dataset_name .*other columns or types in another split than in train"):
            read_images(config, tmp_path)
    else:
        arrays = read_images(config, tmp_path)[1]
        assert arrays.labels.tolist() == ([1, 1, 0] if names == ("b", "a") else [0, 0, 1])


def test_two_columns_of_one_name_are_one_sentence(tmp_path):
    columns = [pa.array(image_bytes(encode(grey(1)))), pa.array(["a"]), pa.array([1])]
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table(columns, names=["image", "label", "label"]), tmp_path / "set" / "train.parquet")
    with pytest.raises(UsageError, match="train.parquet has two columns 'label'; rename one"):
        values(tmp_path / "set", tmp_path, class_names="a,b")


def test_files_of_tables_that_are_not_read_are_counted(tmp_path, capsys):
    write(tmp_path / "set" / "A.PARQUET", 10)
    write(tmp_path / "set" / "b.parquet", 11)
    assert values(tmp_path / "set", tmp_path) == [10, 11]
    write(tmp_path / "set" / "train.parquet", 12)  # by its name a split: those without one are no `train` any more
    (tmp_path / "set" / "notes.txt").touch()
    main(["data", "--dataset_name", str(tmp_path / "set"), "--resolution", "8", "--num_channels", "1"])
    assert "that are ignored: 2 .parquet, 1 .txt" in capsys.readouterr().out
