# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How long a run takes here: in proportion to what there is to do, and said before it begins."""

import re
import time

import pytest
import torch

from diffusers_dp.commands.plan import read
from diffusers_dp.runs import forecast as module
from diffusers_dp.runs.diffusion_run import build
from diffusers_dp.runs.forecast import forecast
from diffusers_dp.runs.plan import plan_run


FLAGS = "--accountant rdp --class_names a,b --num_channels 1 --resolution 8 --block_out_channels 8 --num_train_images"


def forecast_of(*flags, images="64", **settings):
    """Seconds of a step, and what is said."""
    config, facts = read([*FLAGS.split(), images, *flags], "dpdm")
    trained = build(config, facts, "cpu")
    before = {name: value.clone() for name, value in trained.module.state_dict().items()}
    state = torch.get_rng_state()
    said = forecast(facts, plan_run(config, facts), trained, config, config.ordinary_training, 0, "cpu", **settings)
    assert torch.equal(state, torch.get_rng_state()), "the public stream goes on where it was"
    assert all(torch.equal(value, before[name]) for name, value in trained.module.state_dict().items())
    assert all(parameter.grad is None for parameter in trained.module.parameters())
    return float(re.search(r"steps of ([\d.e-]+) s", said)[1]), said


@pytest.fixture
def clock(monkeypatch):
    """A call on n rows takes n seconds, and 1 s more."""
    monkeypatch.setattr(module, "_timed", lambda step, number, device: number + 1.0)
    monkeypatch.setattr(module, "LONG_ENOUGH", 5.0)


def test_time_is_in_proportion_to_images_steps_and_processes(clock):
    step, said = forecast_of("--max_train_steps", "3", "--train_batch_size", "10")
    assert step == 11 and ": 0:00:33 in all" in said
    assert ": 0:04:06 in all" in forecast_of("--max_train_steps", "6", "--train_batch_size", "40")[1]
    step, said = forecast_of("--max_train_steps", "3", "--train_batch_size", "10", count=2)
    assert step == 6 and "2 processes" in said


def test_a_call_that_busy_cores_slowed_makes_no_forecast_of_days(monkeypatch):
    monkeypatch.setattr(module, "_timed", lambda step, number, device: 0.02 if number == 1 else 0.5)
    assert module._measured(lambda number: None, 128, 128, torch.device("cpu"))[0] <= 128 * 0.02


def test_a_step_is_really_taken():
    start = time.perf_counter()
    step, _ = forecast_of("--max_train_steps", "1", "--train_batch_size", "4", "--noise_multiplicity", "1")
    assert 0 < step < time.perf_counter() - start
