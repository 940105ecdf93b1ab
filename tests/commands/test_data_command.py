# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp data`: the operator learns, in the house, what a run would read; and a run says where that is
written."""

import json
import shlex
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Features, Value
from PIL import Image

from diffusers_dp import cli
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.verify import RECEIPT_NAME
from support.flags import TINY_RUN
from support.images import encode, grey, image_bytes, labelled, save_parquet
from support.runs import NUM_IMAGES, load, write_images


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path, monkeypatch):
    """What is decoded for the report is removed."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield
    assert list((tmp_path / "tmp").iterdir()) == [] and not Path("runs").exists()


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "scans"
    for name in ("benign", "malignant", "unclear"):
        (folder / name).mkdir(parents=True)
    for number in range(6):
        Image.new("RGB", (30, 20), (number, 0, 0)).save(folder / "benign" / f"{number}.png")
    grey(size=(8, 8)).save(folder / "malignant" / "a.png")
    for number in range(3):
        (folder / "malignant" / f"{number}.jpg").write_text("no image")
    for name in ("a.txt", "b.txt", "c.csv"):
        (folder / "benign" / name).write_text("")
    return folder


def told(capsys, *flags):
    cli.main(["data", *map(str, flags)])
    return capsys.readouterr().out


def refused(capsys, *flags):
    with pytest.raises(SystemExit) as ended:
        cli.main(["data", *map(str, flags)])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_folder_is_read_and_told_of(scans, capsys):
    said = told(capsys, scans, "--resolution", "16")
    assert said.startswith("PRIVATE")
    for line in (
        "images: 10", "can be read: 7", "cannot be read, and contribute nothing: 3",
        "files beside them that are ignored: 1 .csv, 2 .txt", "  benign: 6", "  malignant: 1", "  unclear: 0",
        "sizes: 6 of 30x20, 1 of 8x8", "modes: 6 of RGB, 1 of L", "become: 16x16 pixels, 3 channels",
    ):  # fmt: skip
        assert line in said.splitlines(), said
    assert "declare: --num_train_images 10 --class_names benign,malignant,unclear" in said
    assert told(capsys, scans, "--resolution", "16", "--class_names", "benign,malignant,unclear") == said


def test_a_data_set_is_read_by_its_columns(tmp_path, capsys):
    rows = image_bytes(*[encode(grey(number)) for number in range(5)], b"no image", None)
    name = save_parquet(tmp_path / "set", {"image": rows, "label": [0, 1, 1, 1, 0, 0, 1]}, labelled(["x", "y"]))
    said = told(capsys, "--dataset_name", name, "--resolution", "8").splitlines()
    assert "images: 7" in said and "can be read: 5" in said and "  x: 2" in said and "  y: 3" in said


def test_labels_are_those_that_training_reads(tmp_path, capsys):
    """By position, where a `ClassLabel` has other names; one that is no text is a blank's."""
    rows = image_bytes(*[encode(grey(number)) for number in range(3)])
    name = save_parquet(tmp_path / "set", {"image": rows, "label": [0, 1, 1]}, labelled(["cat", "dog"]))
    said = told(capsys, "--dataset_name", name, "--resolution", "8", "--class_names", "b,a").splitlines()
    assert "  b: 1" in said and "  a: 2" in said and "does not list" not in "".join(said)
    table = pa.table({"image": rows, "label": pa.array([b"b\xff", b"a", b"b"]).view(pa.string())})
    (tmp_path / "odd" / "data").mkdir(parents=True)
    pq.write_table(table, tmp_path / "odd" / "data" / "train-00000-of-00001.parquet")
    flags = ["--dataset_name", tmp_path / "odd", "--resolution", "8", "--class_names", "a,b"]
    said = told(capsys, *flags).splitlines()
    assert "  a: 1" in said and "  b: 1" in said


def test_units_are_counted(tmp_path, capsys):
    columns = {"image": image_bytes(*[encode(grey(number)) for number in range(5)]), "label": [0, 1, 1, 1, 0]}
    kinds = Features(labelled(["x", "y"]) | {"patient": Value("string")})
    name = save_parquet(tmp_path / "set", columns | {"patient": ["p", "p", "q", None, "p"]}, kinds)
    flags = ["--dataset_name", name, "--resolution", "8", "--unit_column", "patient", "--num_train_units", 2]
    flags += ["--num_train_images", 5]
    said = told(capsys, *flags)
    assert "\npatient: 2 units of up to 3 records, and 1 without a file or an id\n" in said
    assert said.endswith("--class_names x,y --unit_column patient --num_train_units 2\n")


def test_names_that_are_not_utf_8_are_printed(scans, capsys):
    (scans / "benign" / "a.\udce4").write_text("")
    assert "1 .\\udce4" in told(capsys, scans, "--resolution", "8").replace("1 .csv, 2 .txt, ", "")


def test_copies_and_service_folders_are_told_of(scans, capsys):
    same = (scans / "benign" / "0.png").read_bytes()
    for place in ("benign/copy.png", "malignant/copy.png", "benign/@eaDir/0.png", ".ipynb_checkpoints/0.png"):
        (scans / place).parent.mkdir(exist_ok=True)
        (scans / place).write_bytes(same)
    said = told(capsys, scans)
    assert "images: 12" in said.splitlines() and "identical images: 3 files hold 1 images" in said.splitlines()
    assert "1 are in several files, each of which is a unit of its own, up to 3: a person" in said
    assert "left out with all that is in them: 1 .ipynb_checkpoints, 1 @eaDir" in said


def test_copies_in_one_unit_are_covered_by_it(tmp_path, capsys):
    images = [encode(grey(value)) for value in (10, 10, 20, 20, 20, 30)]
    columns = {"image": image_bytes(*images), "patient": ["a", "a", "a", "b", "b", "c"]}
    units = ("--unit_column", "patient", "--num_train_units", "3", "--num_train_images", "6")
    said = told(capsys, "--dataset_name", save_parquet(tmp_path / "set", columns), *units)
    assert "identical images: 5 files hold 2 images" in said
    assert "of these, 1 are in several patients, up to 2:" in said


def test_splits_are_not_proposed_as_classes(scans, capsys):
    for name in ("Training", "TEST"):
        (scans / "splits" / name / "a").mkdir(parents=True)
        grey().save(scans / "splits" / name / "a" / "1.png")
    said = refused(capsys, scans / "splits")
    assert f"look like splits (TEST, Training); give {scans / 'splits' / 'Training'}" in said
    assert "--class_names a" in told(capsys, scans / "splits" / "Training")
    said = refused(capsys, "--train_data_dir", scans / "splits", "--config", "cifar10_cpu")
    assert "TEST" not in said.replace(str(scans), "")


def test_flags_are_those_of_training(scans, capsys):
    """Also a recipe, whose facts are of another data set."""
    more = ["--num_train_images", "10", "--class_names", "benign,malignant,unclear", "--resolution", "28"]
    more += ["--num_channels", "1"]
    assert "declared, as `diffusers-dp data` says them; add --num_train_images and" in refused(
        capsys, scans, "--config", "mnist_cpu"
    )
    assert "become: 28x28 pixels, 1 channel" in told(capsys, scans, "--config", "mnist_cpu", *more)
    assert "nearest is --resolution" in refused(capsys, scans, "--resolutoin", "8")
    assert "--class_names does not list" in refused(capsys, scans, "--class_names", "benign")
    assert "is not a folder" in refused(capsys, scans / "absent")
    assert "--dataset_name" in refused(capsys, "--dataset_name", scans / "absent")
    assert "exclude each other" in refused(capsys, scans, "--dataset_name", scans)
    assert "name the folder" in refused(capsys)
    assert "belongs to no flag" in refused(capsys, scans, scans)


@pytest.mark.parametrize("names", [("kind 0", 'q"q', "x'y"), ("-1", "1")])
def test_its_last_line_can_be_pasted(tmp_path, capsys, names):
    scans = tmp_path / "scans"
    for name in names:
        (scans / name).mkdir(parents=True)
        grey(9).save(scans / name / "1.png")
    flags = shlex.split(told(capsys, scans).splitlines()[-1].partition(": ")[2])
    config = load_config(["--train_data_dir", str(scans), "--dry_run", *flags], CONFIGS["moments"])
    assert config.data.class_names == names and config.num_train_images == len(names)


@pytest.mark.parametrize("method", ["dpdm", "pe"])
def test_a_run_ends_with_where_that_is_written_in_the_same_words(method, tmp_path, monkeypatch, capsys):
    """Whatever is in the file: a broken image, one of 8 bits beside a declared range, or none."""
    ends, noted = [], []
    own = "--generator text --candidates_per_class 4 --variation_strengths 0.5".split() if method == "pe" else []
    for last in ("good", "broken", "of 8 bits"):
        run = tmp_path / last / "run"
        left_out = ("--block_out_channels", "--max_train_steps", "--train_batch_size")
        given = [
            flag for at, flag in enumerate(TINY_RUN)
            if method != "pe" or not {flag, TINY_RUN[at - 1]} & set(left_out)
        ]  # fmt: skip
        place = write_images(tmp_path / last / "i", "broken" if last == "broken" else "good")
        for path in sorted((tmp_path / last / "i").rglob("*.png"))[: NUM_IMAGES if last == "good" else -1]:
            if path.stat().st_size > 40:
                Image.fromarray(np.asarray(Image.open(path)).astype(np.uint16) * 16).save(path)
        load(method, monkeypatch).main([*given, *own, *place, "--value_range", "0,4095", "--output_dir", str(run)])
        said = capsys.readouterr().out.replace(str(tmp_path / last), "").splitlines()
        ends.append(said[-1])
        noted.append(json.loads((run / "private" / "cache" / "reading.json").read_text())["unreadable_images"])
        assert json.loads((run / "release" / RECEIPT_NAME).read_text())["public_facts"]["grey_range"] == [0, 4095]
        assert "- grey range: [0.0, 4095.0]" in (run / "release" / "README.md").read_text()
        with pytest.raises(SystemExit, match="0"):
            cli.main(["verify", str(run / "release")])
    assert len(set(ends)) == 1 and noted == [0, 1, 1]
    assert "/run/private/cache/reading.json" in ends[0] and "`diffusers-dp data`" in ends[0]


def test_labels_under_another_key_are_told(tmp_path, scans, capsys):
    lines = [{"file_name": f"benign/{number}.png", "label": "benign"} for number in range(6)]
    (scans / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("--dataset_name", scans, "--class_names", "benign,malignant", "--label_column")
    assert "labels that are no class: 6 of no label" in told(capsys, *flags, "lbl")
    assert "no class" not in told(capsys, *flags, "label")
