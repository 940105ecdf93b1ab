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


def forecast_of(*flags, images="64", method="dpdm", **settings):
    """Seconds of a step, and what is said."""
    config, facts = read([*FLAGS.split(), images, *flags], method)
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


def test_queries_before_dp_sgd_are_part_of_the_time(clock):
    """Five draws of 16 images, or of 8, take part in central images, and each call has 1 s beside."""
    flags = *"--max_train_steps 3 --train_batch_size 10 --expert".split(), "spatial_sample_rate="
    found = [forecast_of(*flags[:-1], flags[-1] + rate, method="dp_feta")[1] for rate in ("0.25", "0.125")]
    assert "of which DP-SGD 3 steps of 11 s, the queries 0:01:25, " in found[0]
    in_all = [re.search(r"(\d+):(\d+):(\d+) in all", said).groups() for said in found]
    first, second = ((60 * int(hours) + int(minutes)) * 60 + int(seconds) for hours, minutes, seconds in in_all)
    assert first - second == 5 * 8


def test_minutes_that_take_longer_here_are_told_with_those_that_do_not(clock):
    flags = "--max_train_steps", "6", "--train_batch_size", "40"  # 246 s
    found = {minutes: forecast_of(*flags, minutes=minutes)[1] for minutes in (3.0, 4.0)}
    assert "give --minutes 2.2 to end after 3 min here" in found[3.0]
    assert "give --minutes" not in found[4.0]


def test_a_call_that_busy_cores_slowed_makes_no_forecast_of_days(monkeypatch):
    monkeypatch.setattr(module, "_timed", lambda step, number, device: 0.02 if number == 1 else 0.5)
    assert module._measured(lambda number: None, 128, 128, torch.device("cpu"))[0] <= 128 * 0.02


def test_a_step_is_really_taken():
    start = time.perf_counter()
    step, _ = forecast_of("--max_train_steps", "1", "--train_batch_size", "4", "--noise_multiplicity", "1")
    assert 0 < step < time.perf_counter() - start
