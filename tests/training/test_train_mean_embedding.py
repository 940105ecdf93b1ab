# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-MERF from its command line: one query, a generator fitted to its answer, and a release of one step."""

import json

import pytest
import torch

from diffusers_dp import load_verified, verify
from diffusers_dp.data.images import public_facts
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.models import OneStepGenerator
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.runs.plan import plan_run
from support.flags import NUM_IMAGES
from support.runs import files, independent_epsilon, read_ledger, status


METHOD = "dp_merf"
CONFIG = CONFIGS["dp_merf"]
FLAGS = (
    "--block_out_channels 8,16 --generator_steps 2 --expert generator_batch_size=6 --num_features 20 --skip_preflight "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1"
).split()


def plan_of(*given):
    config = load_config(list(given), CONFIG)
    return config, plan_run(config, public_facts(config.data))


def test_from_images_to_release(script, flags, tmp_path, capsys):
    """With a reserve for evaluation: two queries, the total of an independent accountant, and a verifier that
    agrees."""
    script.main([*flags, "--evaluation_reserve", "0.2", "--num_evaluation_images", "6", "--patch_size", "2"])
    run = tmp_path / "run"
    header, rows = read_ledger(run)
    assert [row["stage"] for row in rows] == ["frequency_features", "evaluation_reserve"]
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert files(run / "release") == set(RELEASE_FILES) and status(run) == {"exit_code": 0, "message": "done"}
    receipt = json.loads((run / "release" / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == "DP-MERF" and receipt["status"] == "proven"
    assert "normaliser" not in receipt["public_facts"] and receipt["evaluation"]
    assert receipt["curriculum"]["num_features"] == 20 and receipt["events"][0]["partition"] == "label"
    assert verify.report(run / "release") == 0
    card = (run / "release" / "README.md").read_text()
    assert "dp-sgd" not in card and "| frequency features | gaussian |" in card
    pipeline = load_verified(run / "release")
    assert pipeline.is_one_step and pipeline(class_labels=["left", "right"], output_type="pt").images.shape[0] == 2


def test_the_query_gets_what_the_others_leave():
    _, whole = plan_of("--accountant", "rdp", "--target_epsilon", "3")
    _, part = plan_of("--accountant", "rdp", "--target_epsilon", "3", "--evaluation_reserve", "0.3")
    assert list(whole.rows) == ["frequency_features"] and whole.sampling is None
    assert list(part.rows) == ["frequency_features", "evaluation_reserve"]
    for plan in (whole, part):
        assert 0.999 * 3 < plan.epsilon <= 3
        assert [row["stage"] for row in plan.ledger.rows] == list(plan.rows), "each is asked once"
    assert part.rows["frequency_features"].noise_multiplier > whole.rows["frequency_features"].noise_multiplier


def test_a_generator_learns_the_mean_of_each_class():
    """Of noiseless features: the drawn images of a class come close to its own mean, and not to that of another."""
    from diffusers import UNet2DModel

    from diffusers_dp.distributed.processes import Processes
    from diffusers_dp.models import unet_config
    from diffusers_dp.queries.frequency import RandomFourierFeatures
    from diffusers_dp.runs.warm_up import fit_generator

    torch.manual_seed(0)
    features = RandomFourierFeatures((1, 8, 8), 200, 3.0, seed=0)
    dark, bright = torch.full((1, 1, 8, 8), 0.2), torch.full((1, 1, 8, 8), 0.8)
    embedding = torch.cat([features(dark), features(bright)]) / 2
    network = {"channels_per_level": (8, 16), "layers_per_block": 1, "attention_sizes": (), "patch_size": 1}
    generator = OneStepGenerator(UNet2DModel(**unet_config((1, 8, 8), 2, **network)), 1)
    fit_generator(
        generator, features, embedding, num_steps=60, batch_size=16, learning_rate=1e-2, processes=Processes()
    )
    means = generator.draw(torch.arange(2).repeat(8)).detach().view(8, 2, -1).mean((0, 2))
    assert means.tolist() == pytest.approx([0.2, 0.8], abs=0.15)


def test_a_resumed_run_keeps_its_noise_whatever_was_granted_since(script, flags, tmp_path, monkeypatch):
    """Another release of the data set leaves less than there was at its first start."""
    flags = [*flags, "--dataset_id", "scans", "--ledger_dir", str(tmp_path / "ledgers"), "--dataset_epsilon", "1.5"]
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(OneStepGenerator, "draw", lambda *_: 1 / 0)
        script.main(flags)
    script.main([*flags, "--output_dir", str(tmp_path / "second")])
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert verify.report(tmp_path / "run" / "release") == verify.report(tmp_path / "second" / "release") == 0
