# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The same flags teach the same rows in every method."""

import pytest
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler

from diffusers_dp.data.images import PublicFacts
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.flag_groups import SIGMA_MAX
from diffusers_dp.models.denoiser import SIGMA_DATA
from diffusers_dp.runs.diffusion_run import objective_of, starting_model
from diffusers_dp.runs.pretrained import StartingModel
from support.models import make_ddpm


FACTS = PublicFacts(1437, (1, 8, 8), ("a", "b"))


def schedule_of(*flags):
    return starting_model(load_config(list(flags)), FACTS).scheduler


def test_sampling_ends_at_the_lowest_noise_level_that_was_asked_for():
    default = schedule_of().config
    assert (default.sigma_min, default.sigma_max) == (EDMDPMSolverMultistepScheduler().config.sigma_min, SIGMA_MAX)
    scheduler = schedule_of("--expert", "sigma_min=0.2")
    scheduler.set_timesteps(10)
    assert scheduler.sigmas[-2].item() == pytest.approx(0.2) and scheduler.sigmas[-1] == 0


def test_the_objective_follows_the_scheduler():
    """Not the flag, which a pre-trained model need not agree with."""
    config, unet = load_config([]), make_ddpm().unet
    scheduler = DDIMScheduler(50, 2e-4, 0.03, prediction_type="v_prediction")
    denoiser, _ = objective_of(StartingModel(unet, scheduler, "edm", 2, None), config, None, bf16=False)
    assert denoiser.scheduler is scheduler and denoiser.patch_size == 2
    scheduler = EDMDPMSolverMultistepScheduler(sigma_data=0.7)
    denoiser, _ = objective_of(StartingModel(unet, scheduler, "edm", 1, None), config, None, bf16=False)
    assert denoiser.sigma_data == 0.7 and denoiser.patch_size == 1
    assert schedule_of().config.sigma_data == SIGMA_DATA
