# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The same flags teach the same rows in every method."""

import pytest
from diffusers import EDMDPMSolverMultistepScheduler

from diffusers_dp.data.images import PublicFacts
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.flag_groups import SIGMA_MAX
from diffusers_dp.runs.diffusion_run import starting_model


FACTS = PublicFacts(1437, (1, 8, 8), ("a", "b"))


def schedule_of(*flags):
    return starting_model(load_config(list(flags)), FACTS).scheduler


def test_sampling_ends_at_the_lowest_noise_level_that_was_asked_for():
    default = schedule_of().config
    assert (default.sigma_min, default.sigma_max) == (EDMDPMSolverMultistepScheduler().config.sigma_min, SIGMA_MAX)
    scheduler = schedule_of("--expert", "sigma_min=0.2")
    scheduler.set_timesteps(10)
    assert scheduler.sigmas[-2].item() == pytest.approx(0.2) and scheduler.sigmas[-1] == 0
