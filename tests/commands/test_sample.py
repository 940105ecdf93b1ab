# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sample`: a dataset that loads, images that depend on seed and number alone, and runs that go on."""

import json
import shutil
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch

from diffusers_dp import cli
from diffusers_dp.evaluation.amendments import count_evaluation
from diffusers_dp.models import linear_schedule
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.build import attach_audit
from diffusers_dp.sampling import shards
from diffusers_dp.sampling.drawing import generators
from support.hostile import HOSTILE, INDEX, edit, spoil
from support.releases import make_release
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


def test_datasets_in_folders_of_one_name_are_told_apart(release, tmp_path):
    """Whoever loads both through one cache gets both."""
    loaded = []
    for number in ("3", "5"):
        folder = tmp_path / number / "synthetic"
        asked = ["--output_dir", str(folder), "--num_images", number, "--num_inference_steps", "1"]
        cli.main(["sample", str(release), *asked])
        loaded.append(datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache")).num_rows)
    assert loaded == [3, 5]


def test_a_model_without_classes_gives_no_labels(tmp_path):
    images, labels, _ = run(make_release(tmp_path, num_classes=None), tmp_path / "out", "--solver", "heun")
    assert images.shape == (10, 8, 8) and labels is None


def test_leapfrog_steps_are_as_many_as_asked_for(release, tmp_path, monkeypatch, capsys):
    """And are among what a reader is told."""
    calls, predict = [], DPImagePipeline.predict
    monkeypatch.setattr(DPImagePipeline, "predict", lambda *given: calls.append(1) or predict(*given))
    for number, flags in ((4, []), (3, ["--trajectory_length", "2"])):
        calls.clear()
        folder = tmp_path / str(number)
        run(release, folder, "--solver", "hmc", *flags, "--num_images", "2")
        assert len(calls) == number  # at two levels, of which the last takes one
        assert json.loads((folder / shards.PARAMETERS_NAME).read_text())["trajectory_length"] == number - 1
    for flags, sentence in (
        (["--trajectory_length", "2"], "--trajectory_length has no effect without --solver hmc; give it, too"),
        (["--solver", "hmc", "--trajectory_length", "0"], "--trajectory_length is 0; give an integer of at least 1"),
        (["--solver", "hmc", "--trajectory_length", "99999"], "--trajectory_length is 99,999; give 10,000 at most"),
    ):
        with pytest.raises(SystemExit) as stop:
            run(release, tmp_path / "other", *flags)
        assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_a_model_with_the_steps_of_ddpm(tmp_path, capsys):
    released = make_release(tmp_path, scheduler=linear_schedule())
    images, labels, _ = run(released, tmp_path / "out")
    assert images.shape == (10, 8, 8) and labels == [i % 3 for i in range(10)]
    for flags, sentence in (
        (["--solver", "heun"], "--solver heun needs a model with EDM's noise levels"),
        (["--num_inference_steps", "1001"], "--num_inference_steps is 1001; this model has 1000 at most"),
    ):
        with pytest.raises(SystemExit) as stop:
            run(released, tmp_path / "other", *flags)
        assert stop.value.code == 2 and sentence in capsys.readouterr().err
        assert not (tmp_path / "other").exists()


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
    attach_audit(mine, {"read_private_data": False, "verdict": "VALID"})
    assert count_evaluation(mine) == 1
    again, *_ = run(mine, tmp_path / "out")
    assert np.array_equal(again, whole)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num_images", "0"], "--num_images"),
        (["--num_images", "1" + "0" * 12], "--num_images"),
        (["--num_inference_steps", "1" + "0" * 9], "--num_inference_steps"),
        (["--batch_size", "0"], "--batch_size"),
        (["--num_inference_steps", "0"], "--num_inference_steps"),
        (["--guidance_scale", "-1"], "--guidance_scale"),
        (["--guidance_scale", "nan"], "--guidance_scale"),
        (["--seed", "-1"], "--seed"),
        (["--device", "abacus"], "--device"),
    ],
)
def test_impossible_arguments_are_one_sentence(release, tmp_path, capsys, flags, words):
    with pytest.raises(SystemExit) as refused:
        run(release, tmp_path / "out", *flags)
    assert refused.value.code == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_what_is_no_release_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, code in ((str(tmp_path), 4), (str(tmp_path / "nowhere"), 2), ("no/such model", 2), ("a" * 300, 2)):
        with pytest.raises(SystemExit) as refused:
            run(name, tmp_path / "out")
        assert refused.value.code == code
        assert name in capsys.readouterr().err


def test_guidance_needs_classes(tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        run(make_release(tmp_path, num_classes=None), tmp_path / "out", "--guidance_scale", "2")
    assert refused.value.code == 2 and "--guidance_scale" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["unet/diffusion_pytorch_model.safetensors", "scheduler/scheduler_config.json"])
def test_weights_that_the_receipt_does_not_describe_are_refused(release, tmp_path, capsys, name):
    """Their images would lie beside a receipt that is not theirs."""
    other = shutil.copytree(release, tmp_path / "release")
    content = bytearray((other / name).read_bytes())
    content[-1] ^= 1
    (other / name).write_bytes(content)
    with pytest.raises(SystemExit) as refused:
        run(other, tmp_path / "out")
    assert refused.value.code == 4 and name in capsys.readouterr().err and not (tmp_path / "out").exists()
    (other / name).unlink()
    with pytest.raises(SystemExit):
        run(other, tmp_path / "out")


def test_a_full_disk_is_one_sentence(release, tmp_path, capsys, monkeypatch):
    def full(*table):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(shards, "write_images", full)
        run(release, tmp_path / "out")
    assert stopped.value.code == 2 and "No space left" in capsys.readouterr().err
    assert len(run(release, tmp_path / "out", "--num_images", "10")[0]) == 10


def test_a_folder_that_cannot_be_is_one_sentence(release, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(release, tmp_path / ("a" * 300))
    assert stopped.value.code == 2 and "--output_dir" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--class_balance", "cat"], ["--class_balance", "0,0"], []])
def test_what_needs_no_model_is_refused_before_one_is_loaded(tmp_path, capsys, monkeypatch, flags):
    monkeypatch.setattr(shards, "open_model", lambda *_: pytest.fail("not yet"))
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(SystemExit) as stopped:
        run("some/model", tmp_path if not flags else tmp_path / "out", *flags)
    assert stopped.value.code == 2 and (flags or ["--output_dir"])[0] in capsys.readouterr().err


def test_a_flag_that_does_not_exist_is_one_sentence(tmp_path, capsys):
    for flags in (["--num_imag", "3"], ["--seed", "x"]):
        with pytest.raises(SystemExit) as stopped:
            run("some/model", tmp_path / "out", *flags)
        said = capsys.readouterr().err
        assert stopped.value.code == 2 and flags[0] in said and len(said.splitlines()) == 1


def test_a_dataset_does_not_lie_in_its_release(release, tmp_path, capsys):
    """The release would then hold files that its receipt does not list, and nobody could open it, nor go on."""
    mine = shutil.copytree(release, tmp_path / "release")
    with pytest.raises(SystemExit) as stopped:
        run(mine, mine / "dataset")
    assert stopped.value.code == 2 and "--output_dir" in capsys.readouterr().err and not (mine / "dataset").exists()


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


def test_help_needs_no_torch():
    code = (
        "import sys; from diffusers_dp.cli import main\n"
        "for argv in (['--help'], ['sample', '--help']):\n"
        "    try: main(argv)\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
        "assert 'torch' not in sys.modules and 'datasets' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--num_images" in done.stdout


@pytest.mark.parametrize("trap", ["many layers", "large padding", "an unknown prediction", "half a character"])
def test_a_stranger_s_release_is_refused_though_it_is_consistent(honest, tmp_path, trap, capsys):
    """In one sentence, and nothing is written."""
    hostile = spoil(shutil.copytree(honest, tmp_path / "release"), HOSTILE[trap][0])
    with pytest.raises(SystemExit) as refusal:
        run(hostile, tmp_path / "out")
    said = capsys.readouterr().err
    assert (
        refusal.value.code == 4 and said.count("error:") == 1 and "is not opened" in said and "Traceback" not in said
    )
    assert not (tmp_path / "out").exists()


def test_a_name_of_two_classes_is_told_apart(honest, tmp_path):
    twice = edit(INDEX, id2label={"0": "crane", "1": "crane"})
    folder = spoil(shutil.copytree(honest, tmp_path / "release"), twice)
    _, _, features = run(folder, tmp_path / "out")
    assert features["label"].names == ["crane (0)", "crane (1)", "2"]


def test_too_little_memory_for_a_batch_names_the_flag(honest, tmp_path, monkeypatch, capsys):
    def too_large(self, **arguments):
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(DPImagePipeline, "__call__", too_large)
    with pytest.raises(SystemExit) as refusal:
        run(honest, tmp_path / "out", "--batch_size", "4")
    assert refusal.value.code == 2 and "--batch_size 4 takes more memory" in capsys.readouterr().err
