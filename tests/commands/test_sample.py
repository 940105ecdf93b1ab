# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sample`: a dataset that loads, images that depend on seed and number alone, and runs that go on."""

import json
import shutil

import numpy as np
import pytest

from diffusers_dp.evaluation.judging import count_evaluation
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.sampling import shards
from diffusers_dp.sampling.drawing import generators
from support.releases import add_audit, make_release
from support.sampling import run


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("run"))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 4)


def test_a_dataset_that_loads(release, tmp_path, capsys):
    images, labels, features = run(release, tmp_path / "out")
    assert images.shape == (10, 8, 8) and images.dtype == np.uint8 and images.std() > 0
    assert labels == [i % 3 for i in range(10)] and features["label"].names == ["class 0", "class 1", "class 2"]
    assert sorted(path.name for path in (tmp_path / "out" / "data").iterdir()) == [
        f"train-0000{i}-of-00003.parquet" for i in range(3)
    ]
    receipt = "privacy_receipt.json"
    assert (tmp_path / "out" / receipt).read_bytes() == (release / receipt).read_bytes()
    assert "load_dataset" in capsys.readouterr().out


def test_an_image_depends_on_seed_and_number_alone(release, tmp_path, monkeypatch):
    first, *_ = run(release, tmp_path / "a", "--batch_size", "4")
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 7)
    second, *_ = run(release, tmp_path / "b", "--batch_size", "3")
    assert np.abs(first.astype(int) - second).max() <= 1
    other, *_ = run(release, tmp_path / "c", "--seed", "1")
    assert all(np.abs(image.astype(int) - first).max(axis=(1, 2)).min() > 1 for image in other)
    assert len({image.tobytes() for image in first}) == 10


def test_an_interrupted_run_goes_on_and_gives_the_same(release, tmp_path, monkeypatch):
    whole, *_ = run(release, tmp_path / "whole")
    calls = []
    sampler = DPImagePipeline.__call__

    def interrupted(self, *args, **kwargs):
        calls.append(kwargs["batch_size"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return sampler(self, *args, **kwargs)

    monkeypatch.setattr(DPImagePipeline, "__call__", interrupted)
    with pytest.raises(SystemExit) as stopped:
        run(release, tmp_path / "cut")
    assert stopped.value.code == 130
    names = [path.name for path in (tmp_path / "cut" / "data").iterdir()]
    assert names == ["train-00000-of-00003.parquet"]  # whole or not at all
    (tmp_path / "cut" / "data" / ".train-00001-of-00003.parquet").write_bytes(b"PAR1 half a file")  # after a power cut
    again, *_ = run(release, tmp_path / "cut")
    assert np.array_equal(again, whole) and calls == [4, 4, 4, 2]  # the first shard was not drawn again
    run(release, tmp_path / "cut")
    assert len(calls) == 4  # nothing is left to do


def test_what_is_added_to_a_receipt_later_does_not_stop_a_run_that_was_interrupted(release, tmp_path):
    """An audit and a count of evaluations lie outside the hashes: the release is the same."""
    mine = shutil.copytree(release, tmp_path / "release")
    whole, *_ = run(mine, tmp_path / "out")
    (tmp_path / "out" / "data" / "train-00002-of-00003.parquet").unlink()
    add_audit(mine, {"verdict": "VALID"})
    count_evaluation(mine)
    again, *_ = run(mine, tmp_path / "out")
    assert np.array_equal(again, whole)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num_images", "0"], "--num_images"),
        (["--guidance_scale", "nan"], "--guidance_scale"),
        (["--guidance_scale", "0"], "--guidance_scale is 0.0; give a number that is above 0"),  # labels would be false
        (["--class_balance", "0.3;0.7"], "--class_balance '0.3;0.7' is not a share for each of 3 classes"),
        (["--device", "abacus"], "--device"),
        (["--s_churn", "10"], "--s_churn 10 needs --solver heun"),
        (["--solver", "heun", "--s_min", "0.1"], "--s_min needs --s_churn"),
        (["--mixed_precision", "fp16", "--device", "cpu"], "--mixed_precision fp16 needs a GPU"),
    ],
)
def test_impossible_arguments_are_one_sentence(release, tmp_path, capsys, flags, words):
    with pytest.raises(SystemExit) as refused:
        run(release, tmp_path / "out", *flags)
    assert refused.value.code == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_dataset_does_not_lie_in_its_release(release, tmp_path, capsys):
    """The release would then hold files that its receipt does not list, and nobody could open it, nor go on."""
    mine = shutil.copytree(release, tmp_path / "release")
    with pytest.raises(SystemExit) as stopped:
        run(mine, mine / "dataset")
    assert stopped.value.code == 2 and "--output_dir" in capsys.readouterr().err and not (mine / "dataset").exists()


CHURNED = ["--solver", "heun", "--s_churn", "10", "--s_min", "0.001", "--s_max", "100"]


def test_the_solver_is_stated_and_an_interrupted_run_refuses_another(release, tmp_path, capsys):
    whole, *_ = run(release, tmp_path / "out", *CHURNED)
    stated = json.loads((tmp_path / "out" / "sampling.json").read_text())
    assert {name: stated[name] for name in ("solver", "s_churn", "s_min", "s_max")} == {
        "solver": "heun", "s_churn": 10.0, "s_min": 0.001, "s_max": 100.0,
    }  # fmt: skip
    assert not {"s_noise", "mixed_precision"} & stated.keys()
    assert "--s_churn 10.0 --s_max 100.0 --s_min 0.001" in (tmp_path / "out" / "README.md").read_text()
    (tmp_path / "out" / "data" / "train-00001-of-00003.parquet").unlink()
    for other in (["--s_churn", "9"], ["--s_noise", "1.003"], ["--mixed_precision", "bf16"]):
        with pytest.raises(SystemExit) as refused:
            run(release, tmp_path / "out", *CHURNED, *other)
        assert refused.value.code == 2 and "images of another command" in capsys.readouterr().err
    again, *_ = run(release, tmp_path / "out", *CHURNED, "--mixed_precision", "no", "--s_noise", "1")
    still, *_ = run(release, tmp_path / "still", "--solver", "heun")
    assert np.array_equal(again, whole) and not np.array_equal(still, whole)


def test_images_of_another_command_are_kept(release, tmp_path, capsys):
    run(release, tmp_path / "out")
    for flags in (["--seed", "1"], ["--num_images", "11"], ["--num_inference_steps", "3"]):
        with pytest.raises(SystemExit) as refused:
            run(release, tmp_path / "out", *flags)
        assert refused.value.code == 2 and "--output_dir" in capsys.readouterr().err
    other = make_release(tmp_path, num_classes=2)
    with pytest.raises(SystemExit):
        run(other, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    with pytest.raises(SystemExit):
        run(release, tmp_path / "full")


def test_seeds_of_one_run_never_meet():
    seeds = [generator.initial_seed() for generator in generators(7, range(5000))]
    assert len(set(seeds)) == 5000
    assert not set(seeds) & {generator.initial_seed() for generator in generators(8, range(5000))}
