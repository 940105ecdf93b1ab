"""Real images are read for an evaluation as training read them, by what the receipt says."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from diffusers_dp import cli
from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.images import Source
from diffusers_dp.methods.feta_pro import FETAProConfig
from support.deep_images import png, tiff
from support.images import encode, image_bytes, read_images, save_parquet
from support.runs import load


NAMES = ("cat", "empty", "dog")
SIZES = [(8, 8), (20, 12), (9, 30)]


def picture(number: int, mode: str = "L") -> Image.Image:
    values = np.random.default_rng(number).integers(0, 256, (*SIZES[number % 3], 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def folder_of(folder: Path, suffix: str = ".png", count: int = 6, nested: str = "", **how) -> Path:
    for number in range(count):
        path = folder / NAMES[2 * (number % 2)] / (nested if number % 4 else "") / f"{number}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        deep = np.random.default_rng(number).integers(0, 4096, (*SIZES[number % 3], 1)).astype(np.uint16)
        content = {"deep png": lambda: png(deep, 0), "deep tiff": lambda: tiff(deep, 1)}
        kind = how.get("kind", "L")
        path.write_bytes(content[kind]() if kind in content else encode(picture(number, kind)))
    (folder / "empty").mkdir(exist_ok=True)
    return folder


def nothing(folder: Path) -> None:
    pass


def damage(folder: Path) -> None:
    (folder / "cat" / "0.png").write_bytes(b"broken")
    (folder / "notes.txt").write_text("none")
    (folder / "dog" / "empty.png").write_bytes(b"")


CASES = {
    "grey": ({}, {}, nothing),
    "nested": ({"nested": "deep/er"}, {}, nothing),
    "colour as grey": ({"kind": "RGB"}, {}, nothing),
    "colour": ({"kind": "RGB"}, {"num_channels": 3}, nothing),
    "grey as colour": ({}, {"num_channels": 3}, nothing),
    "palette": ({"kind": "P"}, {"num_channels": 3}, nothing),
    "alpha": ({"kind": "RGBA"}, {}, nothing),
    "12 bits in png": ({"kind": "deep png"}, {"value_range": "0,4095"}, nothing),
    "12 bits in tiff": ({"kind": "deep tiff", "suffix": ".tif"}, {"window": "2000,1000"}, nothing),
    "chosen suffixes": ({}, {"image_suffixes": ".png"}, damage),
    "damage": ({}, {}, damage),
}


@pytest.mark.parametrize("as_a_split", [False, True])
@pytest.mark.parametrize("case", sorted(CASES))
def test_class_folders_become_the_arrays_of_training(case, as_a_split, tmp_path):
    how, flags, change = CASES[case]
    folder = folder_of(tmp_path / "scans" / "train" if as_a_split else tmp_path / "scans", **how)
    change(folder)
    config = FETAProConfig(
        train_data_dir=str(folder), class_names=",".join(NAMES), **{"num_channels": 1, "resolution": 8, **flags}
    )
    arrays = read_images(config, tmp_path)[1]
    if as_a_split:
        folder_of(tmp_path / "scans" / "test", count=2, **how)
    known = {"class_names": NAMES, "image_suffixes": config.suffixes}
    source = Source("--real", str(tmp_path / "scans"), trained_on=known, value_range=config.declared_range)
    found = source.load("train", config.image_shape, resize=True, cache_dir=tmp_path / "other")
    assert np.array_equal(found.images, arrays.images[arrays.readable])
    assert np.array_equal(found.labels, arrays.labels[arrays.readable])
    assert np.array_equal(found.ids, arrays.ids[arrays.readable]) and found.class_names == NAMES
    if as_a_split:
        assert len(source.load("test", config.image_shape, resize=True, cache_dir=tmp_path / "other")) == 2
    else:
        with pytest.raises(UsageError, match="'test' does not exist"):
            source.shape("test", tmp_path)


@pytest.mark.parametrize("plain", [False, True])
def test_tables_are_read_by_the_columns_and_classes_of_the_receipt(plain, tmp_path):
    labels = [0, 2, 0, 2]
    kind = datasets.Value("int64") if plain else datasets.ClassLabel(names=list(NAMES))
    columns = {"scan": image_bytes(*map(encode, map(picture, range(4)))), "finding": labels}
    features = datasets.Features({"scan": datasets.Image(), "finding": kind})
    name = save_parquet(tmp_path / "set", columns, features)
    config = FETAProConfig(
        dataset_name=name, image_column="scan", label_column="finding", class_names=",".join(NAMES), resolution=8,
        num_channels=1,
    )  # fmt: skip
    arrays = read_images(config, tmp_path)[1]
    known = {"class_names": NAMES, "image_column": "scan", "label_column": "finding"}
    found = Source("--real", name, trained_on=known).load("train", (1, 8, 8), resize=True, cache_dir=tmp_path)
    assert np.array_equal(found.images, arrays.images) and found.labels.tolist() == labels
    # Other real images tell their own classes.
    if not plain:
        other = replace(Source("--real", name, trained_on={**known, "class_names": ("cat",)}))
        assert other.load("train", (1, 8, 8), resize=True, cache_dir=tmp_path).class_names == NAMES


@pytest.mark.parametrize(
    ("beside", "column"), [("metadata.csv", "label"), ("notes.csv", "label"), ("metadata.csv", "finding")]
)
def test_a_table_beside_class_folders_is_told(beside, column, tmp_path):
    """Training by `--train_data_dir` reads no table; one without labels tells no class."""
    folder = folder_of(tmp_path / "scans")
    lines = [f"{path.relative_to(folder)},dog" for path in sorted(folder.rglob("*.png"))]
    (folder / beside).write_text("\n".join([f"file_name,{column}", *lines]))
    found = Source("--real", str(folder), trained_on={"class_names": NAMES}).load(
        "train", (1, 8, 8), resize=True, cache_dir=tmp_path
    )
    read = (beside, column) == ("metadata.csv", "label")
    assert (set(found.labels) == {2}) is read
    assert found.origin.get("labels") == ("of a table, not of the class folders" if read else None)


def test_the_command_of_the_tutorial_needs_no_further_flag(tmp_path, monkeypatch, capsys):
    scans, run = tmp_path / "scans", tmp_path / "run"
    for split, count in (("train", 40), ("test", 20)):
        folder_of(scans / split, count=count, nested="deep", kind="deep png")
        shutil.rmtree(scans / split / "empty")
    flags = (
        "--target_epsilon 5 --skip_preflight --accountant rdp --num_train_images 40 --resolution 8 --num_channels 1 "
        "--class_names cat,dog "
        f"--value_range 0,4095 --images_per_class 20 --train_data_dir {scans / 'train'} "
        f"--output_dir {run}"
    )
    load("moments", monkeypatch).main(flags.split())
    receipt = json.loads((run / "release" / "privacy_receipt.json").read_text())
    assert receipt["public_facts"]["grey_range"] == [0, 4095]
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    cli.main(
        "evaluate --quick --images run/release --real scans --output_dir report --classifier_epochs 2 "
        "--classifiers logreg".split()
    )
    said = capsys.readouterr().out
    assert "erdict" in said and "training a classifier" in said or "No verdict, because the real images teach" in said
    assert "Likeness: Fréchet distance (pixels) " in said and "between two halves of the real ones" in said
