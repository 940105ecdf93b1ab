# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `diffusers-dp evaluate` measures when it is asked: choices on validation images, rankings, a DP classifier, the
way to the release."""

import shutil

import pytest
from diffusers import UNet2DModel
from safetensors.torch import load_file

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.inputs import check_held_out
from diffusers_dp.runs.kept_states import kept_states, load_state
from support.evaluating import FAST, read, refused, run
from support.flags import TINY
from support.runs import load


HOUSE = "private/unprotected/evaluation"


@pytest.fixture
def data(judged_data):
    return judged_data


def of(found, **protocol):
    return [each for each in found["measurements"] if protocol.items() <= each["protocol"].items()]


def test_real_validation_images_choose_the_epoch(data, tmp_path):
    flags = (*FAST, "--classifiers", "mlp", "--classifier_epochs", "4", "--selection", "validation")
    run(
        "--images", data / "synthetic", "--real", data / "real", "--output_dir", tmp_path, *flags,
        "--validation_size", "60",
    )  # fmt: skip
    found = read(tmp_path / HOUSE)
    (small, whole) = of(found, classifier="mlp", selection="validation", unit="%")
    assert all(1 <= each["protocol"]["chosen_epochs"][0] <= 4 for each in (small, whole))
    sizes = [found["image_sets"][f"real {side}"]["num_images"] for side in ("training", "validation")]
    assert sum(sizes) == 200 and 40 < sizes[1] < 80  # each image by its own id
    assert "of which choose the epoch" not in (tmp_path / HOUSE / "report.html").read_text()


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    flags = [*TINY, *"--train_batch_size 64 --accountant rdp --target_epsilon 1".split(), "--output_dir", str(run)]
    flags += "--max_train_steps 4 --checkpointing_steps 1 --checkpoints_total_limit 3".split()
    with pytest.MonkeyPatch.context() as patch:
        load("feta_pro", patch).main(flags)
    return run


@pytest.fixture
def trained(trained_once, tmp_path):
    return shutil.copytree(trained_once, tmp_path / "run")


def test_the_way_to_the_release(trained, capsys):
    release = trained / "release"
    states = kept_states(release)
    names = ["warm-up (spatial)", "warm-up (frequency)", *(f"step {step} of DP-SGD" for step in (2, 3, 4))]
    assert [(each.name, each.step) for each in states] == list(zip(names, (None, 0, 2, 3, 4), strict=True))
    unet = UNet2DModel.from_pretrained(release / "unet")
    released = load_file(release / "unet" / "diffusion_pytorch_model.safetensors")
    for state, same in ((states[1], False), (states[4], True)):  # the last checkpoint is what was released
        load_state(state, unet)
        assert all((unet.state_dict()[name] == weight).all() for name, weight in released.items()) == same
    flags = ["--model", release, "--num_images", 40, "--num_inference_steps", 2, *FAST, "--training_curve"]
    run(*flags)
    found = read(trained / HOUSE)
    curve = [each for each in found["measurements"] if "state" in each["protocol"]]
    assert [each["protocol"]["state"] for each in curve] == names and len({each["value"] for each in curve}) == 5
    whole = next(each for each in found["measurements"] if each["metric"] == "Fréchet distance (pixels)")
    assert curve[-1]["value"] == pytest.approx(whole["value"])  # as many images of the same weights
    assert "How far did each stage bring it?" in (trained / HOUSE / "report.html").read_text()
    damaged = trained / "private" / "checkpoint-3" / "ema.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert "ema.safetensors is damaged" in refused(capsys, *flags, code=4)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (None, "training held out none"),
        ({"images": 60, "ids": "column", "column": "key"}, "training held out 60 by their key"),
        ({"images": 50, "ids": "row", "column": None}, "training held out 50 by their row"),
    ],
)
def test_the_receipt_must_say_that_the_same_images_were_held_out(stated, words):
    """A refusal counts no real image."""
    facts, held_out = {"num_images": 150, "held_out": stated}, {"images": 40, "ids": "row", "column": None}
    with pytest.raises(UsageError, match=words) as refused:
        check_held_out(facts, held_out)
    assert "40" not in str(refused.value) and "150" not in str(refused.value)
    check_held_out({"held_out": held_out}, held_out)
    check_held_out(None, held_out)
