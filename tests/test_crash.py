# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that is killed at any moment goes on, spends no more than it reserved, and never uses noise twice."""

import json
import random
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from power_cut import Disk, start, write_state
from test_train_feta_pro import NUM_IMAGES, read_ledger, status, write_images

from diffusers_dp import load_verified, sensitive
from diffusers_dp.randomness import PrivateGenerator
from diffusers_dp.verify import verify


FLAGS = (
    "--block_out_channels 4,8 --spatial_steps 1 --frequency_steps 1 --generator_steps 1 --num_auxiliary_images 6 "
    "--num_frequency_features 10 --num_inference_steps 1 --generator_channels 4 --skip_preflight --noise_multiplicity 1 "
    "--spatial_batch_size 6 --frequency_batch_size 6 --generator_batch_size 6 --num_central_images 2 --accountant rdp "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --train_batch_size 8 "
    "--target_epsilon 5 --max_train_steps 4 --checkpointing_steps 2 --restart_slack 4"
).split()
RESUME = ["--resume_from_checkpoint", "latest"]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    return [*FLAGS, *write_images(tmp_path_factory.mktemp("data") / "images")]


class Watch:
    """What a process draws and how many noisy gradients it takes, from outside of the library."""

    def __init__(self, patch):
        self.draws: list[bytes] = []
        self.steps = 0
        normal, add_noise = PrivateGenerator.normal, sensitive.add_noise

        def noted_normal(generator, shape, std, device="cpu"):
            drawn = normal(generator, shape, std, device)
            if drawn.numel() >= 4:  # fewer may agree by chance
                self.draws.append((drawn / std).flatten()[:4].numpy().tobytes())
            return drawn

        def noted_step(*arguments, **options):
            self.steps += 1
            return add_noise(*arguments, **options)

        patch.setattr(PrivateGenerator, "normal", noted_normal)
        patch.setattr(sensitive, "add_noise", noted_step)


def reserved_steps(run, stage="dp_sgd"):
    return sum(row["steps_reserved"] for row in read_ledger(run)[1] if row["stage"] == stage)


def check_finished(run, steps):
    """The release is whole, and its receipt covers all steps that any process took."""
    receipt, problems = verify(run / "release")
    assert problems == [] and status(run) == {"exit_code": 0, "message": "done"}
    assert steps <= reserved_steps(run) <= 8
    assert receipt["claimed_epsilon"]["rdp"]["epsilon"] <= 5 and receipt["target_epsilon"] == 5
    assert [event["steps_reserved"] for event in receipt["events"] if event["stage"] == "dp_sgd"] == [
        row["steps_reserved"] for row in read_ledger(run)[1] if row["stage"] == "dp_sgd"
    ]
    assert load_verified(run / "release").unet.config.in_channels == 1


def test_a_power_cut_before_every_sync(script, flags, tmp_path, monkeypatch):
    """All that was not synced is lost then. The run goes on to its end all the same, in every case."""
    watch, cuts = Watch(monkeypatch), {}
    (tmp_path / "run").mkdir()

    def remember():
        cuts[disk.state()] = SimpleNamespace(steps=watch.steps, draws=list(watch.draws))  # the last one with this state

    disk = Disk(tmp_path / "run", remember)
    with disk.watched():
        script.main([*flags, "--output_dir", str(tmp_path / "run")])
    cuts[disk.state()] = SimpleNamespace(steps=watch.steps, draws=list(watch.draws))
    check_finished(tmp_path / "run", watch.steps)
    assert len(cuts) > 15 and {cut.steps for cut in cuts.values()} >= {0, 2, 4}
    for number, (state, cut) in enumerate(cuts.items()):
        run = tmp_path / f"run_{number}"
        write_state(state, run)
        watch.draws, watch.steps = [], 0
        script.main([*flags, "--output_dir", str(run), *RESUME])
        check_finished(run, cut.steps + watch.steps)
        twice = [draw for draw, times in Counter([*cut.draws, *watch.draws]).items() if times > 1]
        assert not twice, f"noise was used twice after cut {number}"
