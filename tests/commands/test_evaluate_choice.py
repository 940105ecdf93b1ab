# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What cannot be measured: refused before anything takes long where it was asked for, else left out with a warning."""

import json

import numpy as np
import pytest
import torch

from diffusers_dp import cli, verify
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.evaluation import classifier_features, judging
from diffusers_dp.evaluation.inputs import Inputs
from support.evaluating import FAST, NAMES, read, refused, run
from support.images import write_dataset


@pytest.fixture
def data(judged_data, monkeypatch):
    monkeypatch.setattr(classifier_features, "STEPS", 2)
    monkeypatch.setattr(judging, "measure_utility", lambda *args, **options: [])
    return judged_data


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--extractors", "classifier", "--metrics", "fid"], "needs 129 synthetic images, and there are 30"),
        (["--extractors", "inception"], "could not be downloaded or read"),
        (["--extractors", "efficientnet_lite0"], "efficientnet_lite0 is not installed"),
        (["--utility_sizes", "31"], "--utility_sizes asks for 31 of 30"),
        (["--test_split", "dev"], "'dev' does not exist"),
    ],
)
def test_what_is_asked_for_is_refused_before_an_evaluation_is_counted(
    release, data, capsys, flags, words, monkeypatch
):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: "/dev/null")
    monkeypatch.setattr("diffusers_dp.queries.efficientnet.find_spec", lambda name: None)
    said = refused(capsys, "--model", release, "--real", data / "real", "--num_images", 30, *flags)
    assert words in said and verify.verify(release)[0]["private_evaluations"] == 0
    assert not (release.parent / "private").exists()


def test_a_model_is_not_taken_for_images(release, data, capsys):
    """Its picture would be one, and nobody would count the private images that were read."""
    assert "is a model; give it as --model" in refused(
        capsys, "--images", release, "--real", data / "real", "--resize"
    )
    assert verify.verify(release)[0]["private_evaluations"] == 0


def test_what_the_real_images_decide_is_refused_before_anything_is_drawn(release, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Inputs, "draw", None)
    flags = ("--model", release, "--num_images", 200, "--metrics", "fid", "--extractors", "classifier")
    images, labels = load_digits_split(train=True)
    few, one = labels < 3, labels == 1
    for rows, names, words in (
        (few, NAMES, "needs 129 real training images, and there are fewer"),
        (one, NAMES, "--extractors classifier needs real training images of two classes"),
    ):
        real = write_dataset(tmp_path / words[:5], images[rows][:60], labels[rows][:60], names)
        assert words in refused(capsys, *flags, "--real", real)
        assert not (release.parent / "private").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--guidance_scale", 2), ("--num_inference_steps", 5), ("--solver", "heun"), ("--deformation", 0.3),
        ("--batch_size", 5), ("--mixed_precision", "bf16"), ("--base", "there"),
    ],
)  # fmt: skip
def test_flags_of_drawing_are_refused_where_nothing_is_drawn(data, capsys, flags):
    said = refused(capsys, "--images", data / "synthetic", "--real", data / "real", *flags)
    assert f"{flags[0]} has no effect without --model" in said


def test_two_splits_that_order_their_classes_otherwise_are_refused(data, tmp_path, capsys):
    images, labels = load_digits_split(train=True)
    for split, names in (("train", NAMES), ("test", NAMES[::-1])):
        rows = np.flatnonzero(labels < 3)[:60]
        real = write_dataset(tmp_path / "real", images[rows], labels[rows], names, split)
    said = refused(capsys, "--images", data / "synthetic", "--real", real, "--metrics", "fid")
    assert "real test images have the classes class 2, class 1, class 0, the training ones class 0, class 1" in said
    given = ("--class_names", ",".join(NAMES), "--output_dir", tmp_path / "report")
    run("--images", data / "synthetic", "--real", real, *given, *FAST)


def test_a_folder_of_drawn_images_tells_no_other_guarantee_than_its_receipt_proves(release, data, tmp_path, capsys):
    drawn, given = tmp_path / "drawn", ("--real", data / "real", "--output_dir", tmp_path / "report", *FAST)
    how = ["--num_images", "30", "--num_inference_steps", "2", "--solver", "heun"]
    cli.main(["sample", str(release), "--output_dir", str(drawn), *how])
    run("--images", drawn, *given)
    found = read(tmp_path / "report" / "private" / "unprotected" / "evaluation")
    assert found["settings"]["seed"] == 0 and not {"solver", "num_inference_steps"} & found["settings"].keys()
    honest = {name: (drawn / name).read_text() for name in ("privacy_receipt.json", "sampling.json")}
    receipt = json.loads(honest["privacy_receipt.json"])
    receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"] /= 2
    for name, content in (
        ("privacy_receipt.json", json.dumps(receipt)), ("sampling.json", None), ("sampling.json", "[" * 9999),
        ("sampling.json", json.dumps(json.loads(honest["sampling.json"]) | {"receipt_sha256": "0" * 64})),
    ):  # fmt: skip
        (drawn / name).unlink() if content is None else (drawn / name).write_text(content)
        assert "is not judged: " in refused(capsys, "--images", drawn, *given, code=4)
        (drawn / name).write_text(honest[name])
