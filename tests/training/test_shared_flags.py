# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that every training script has do in every one of them what they say."""

import json

import pytest
import torch

from diffusers_dp import cli
from diffusers_dp.evaluation import networks
from diffusers_dp.queries.class_counts import ClassCounts
from diffusers_dp.runs import warm_up
from diffusers_dp.sampling.drawing import CLASS_SHARE
from diffusers_dp.verify import verify
from support.few import few
from support.flags import DIFFUSION_METHODS, NUM_IMAGES, TINY_RUN
from support.runs import load, write_images


OWN = {
    "feta_pro": "--curriculum none",
    "dp_feta": "--spatial_steps 2 --num_central_images 3",
    "dpdm": "",
    "dp_diffusion": "--objective edm",
}


@pytest.fixture(params=few(DIFFUSION_METHODS))
def run(request, tmp_path, monkeypatch):
    """Trains with these flags and returns the run's folder and the checked receipt."""
    script = load(request.param, monkeypatch)
    flags = [*TINY_RUN, *OWN[request.param].split(), *write_images(tmp_path / "images")]

    def train(more):
        script.main([*flags, "--output_dir", str(tmp_path / "run"), *more.split()])
        receipt, problems = verify(tmp_path / "run" / "release")
        assert problems == []
        return tmp_path / "run", receipt

    return train


def test_a_reserve_for_evaluation(run, monkeypatch, tmp_path):
    monkeypatch.setattr(networks, "CNN_TRAINING", networks.CNN_TRAINING.with_epochs(1))
    folder, receipt = run("--evaluation_reserve 0.1 --num_evaluation_images 20")
    assert [event["stage"] for event in receipt["events"]].count("evaluation_reserve") == 1
    assert receipt["evaluation"][0]["metric"] == "accuracy"
    assert "## Evaluation, paid for" in (folder / "release" / "README.md").read_text()
    asked = "--num_images 20 --num_inference_steps 1 --class_balance released".split()
    cli.main(["sample", str(folder / "release"), *asked, "--output_dir", str(tmp_path / "drawn")])
    balance = json.loads((tmp_path / "drawn" / "sampling.json").read_text())["class_balance"]
    noisy = [found["value"] for found in receipt["evaluation"] if found["metric"] == CLASS_SHARE]
    assert [float(share) for share in balance.split(",")] == pytest.approx(noisy, rel=1e-3) and len(noisy) > 1


ONE_STEP = "--generator_steps 1 --expert generator_batch_size=6 --noise_multiplier class_counts=20".split()
MERF = (
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--block_out_channels 8,16 --num_inference_steps 2 --skip_preflight --target_epsilon 1 --num_features 20"
).split()
FETA_PRO = "--spatial_steps 1 --frequency_steps 1 --num_frequency_features 20 --expert num_auxiliary_images=6".split()


@pytest.mark.parametrize(("method", "flags"), [("feta_pro", [*TINY_RUN, *FETA_PRO]), ("dp_merf", MERF)])
def test_class_counts_weigh_the_features(method, flags, monkeypatch, tmp_path):
    """Weights that are stood in for by 0 take all features away, whatever the noise."""
    fit, fitted = warm_up.fit_generator, []

    def fitting(generator, phi, target, **more):
        fitted.append(target)
        fit(generator, phi, target, **more)

    monkeypatch.setattr(ClassCounts, "finish", lambda self, answer, *_: torch.zeros_like(answer[0]))
    monkeypatch.setattr(warm_up, "fit_generator", fitting)
    images = [*write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    load(method, monkeypatch).main([*flags, *ONE_STEP, *images])
    receipt, problems = verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["events"][0]["stage"] == "class_counts"
    assert len(fitted) == 1 and not fitted[0].any()
