# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Folders of class folders through the loader: copies in service folders, splits, and odd names."""

import unicodedata

import pytest
from PIL import Image

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import load_config
from support.flags import SHORT_RUN
from support.images import folder_config, read_images


def write(path, value=10):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value, 0, value)).save(path, "PNG")


def read(folder, tmp_path, names, **flags):
    facts, arrays = read_images(folder_config(folder, class_names=names, **flags), tmp_path)
    return facts.num_images, arrays


@pytest.mark.parametrize("channels", [1, 3])
def test_copies_in_service_folders_are_no_records(tmp_path, channels):
    """Nor are service folders classes: each image counts once, so that its epsilon is what is printed."""
    scans = tmp_path / ".data" / "scans"
    for name in ("cat", "dog"):
        for number in range(3):
            write(scans / name / "deep" / f"{number}.png", number)
    without = read(scans, tmp_path / "1", "cat,dog", num_channels=channels)[1]
    for service in (".ipynb_checkpoints", "__MACOSX", "@eaDir", ".Trash-1000", "#recycle", "$RECYCLE.BIN"):
        for place in ("", "cat", "dog/deep"):
            write(scans / place / service / "0.png", 200)
            write(scans / place / service / "cat" / "0.png", 200)
        write(scans / "cat" / f".{service}.png", 200)
    count, arrays = read(scans, tmp_path / "2", "cat,dog", num_channels=channels)
    assert count == 6 and (arrays.images == without.images).all() and (arrays.ids == without.ids).all()
    with pytest.raises(UsageError, match="--class_names names '@eaDir'"):
        read(scans, tmp_path / "3", "cat,dog,@eaDir")


@pytest.mark.parametrize(
    "names",
    [
        ("train", "test"), ("Training", "Testing"), ("TRAIN",), ("val", "dev", "eval"), ("train-00", "train-01"),
        ("train2017", "val2017"), ("images_train", "images test"), ("01.training", "02.validation"),
        ("Train_set", "TestSet"), ("valid", "evaluation"),
    ],
)  # fmt: skip
def test_splits_are_no_classes(tmp_path, names):
    for name in names:
        write(tmp_path / "scans" / name / "a" / "1.png")
    write(tmp_path / "scans" / ".cache" / "1.png")
    with pytest.raises(UsageError, match=r"--train_data_dir .* look like splits .*; give .*/scans/") as refused:
        read(tmp_path / "scans", tmp_path, ",".join(names))
    meant = next((name for name in sorted(names) if "train" in name.lower()), sorted(names)[0])
    assert str(tmp_path / "scans" / meant) in str(refused.value)
    assert read(tmp_path / "scans" / meant, tmp_path, "a")[0] == 1


@pytest.mark.parametrize(
    "places",
    [
        ("a/train/1.png", "a/test/1.png", "b/1.png"), ("a/Training/1.png", "b/TEST/1.png"),
        ("a/b/val/1.png", "a/b/train/1.png"), ("images/train/a/1.png", "images/test/a/1.png"),
    ],
)  # fmt: skip
def test_splits_in_classes_are_not_merged(tmp_path, places):
    for place in places:
        write(tmp_path / "scans" / place)
    names = ",".join(sorted({place.partition("/")[0] for place in places}))
    with pytest.raises(UsageError, match="--train_data_dir .* look like splits"):
        read(tmp_path / "scans", tmp_path, names)


def test_a_class_called_train_is_a_class(tmp_path):
    for name in ("train", "bus", "test"):
        write(tmp_path / "scans" / name / "1.png")
        write(tmp_path / "scans" / name / "train" / "2.png")
    count, arrays = read(tmp_path / "scans", tmp_path, "bus,test,train")
    assert count == 6 and arrays.labels.tolist() == [0, 0, 1, 1, 2, 2]


ODD = (
    "a[1]", "a?b*", "two words", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "a#b", "50%20",
    "-dash", "'q\"", "{x}", "~tilde", "$HOME", "a::b", "back\\slash", "new\nline", "https:",
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_names_of_folders_classes_and_images(tmp_path, odd, channels):
    scans = tmp_path / odd / odd
    for number, name in enumerate([odd, "plain"]):
        write(scans / name / odd / f"{odd}.png", 100 + number)
        write(scans / name / f"x{odd}.png", 100 + number)
    (scans / "plain" / "broken.png").write_bytes(b"no image")
    count, arrays = read(scans, tmp_path, f"{odd},plain", num_channels=channels)
    assert count == 5 and sorted(arrays.labels[arrays.readable].tolist()) == [0, 0, 1, 1]


NO_UTF8 = b"\xe4".decode("utf-8", "surrogateescape")


def test_an_image_whose_name_is_not_utf_8_is_read(tmp_path):
    write(tmp_path / "scans" / "a" / f"{NO_UTF8}.png")
    write(tmp_path / "scans" / "b" / "1.png")
    count, arrays = read(tmp_path / "scans", tmp_path, "a,b")
    assert count == 2 and arrays.readable.all()


@pytest.mark.parametrize("flag", ["class_names", "output_dir"])
def test_flags_that_a_release_could_not_name_are_refused_before_anything_is_spent(flag):
    with pytest.raises(UsageError, match="is not UTF-8: rename it"):
        load_config([*SHORT_RUN, f"--{flag}", f"a,{NO_UTF8}"])


@pytest.mark.parametrize("name", ["a,b", " a", "a ", NO_UTF8])
def test_a_name_that_no_list_can_hold_is_refused(tmp_path, name):
    write(tmp_path / "scans" / name / "1.png")
    with pytest.raises(UsageError, match="--train_data_dir .*; rename it"):
        read(tmp_path / "scans", tmp_path, name)
