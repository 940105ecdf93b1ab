# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How long a run takes here: in proportion to what there is to do, and said before it begins."""

import time
from dataclasses import replace

import pytest
import torch

from diffusers_dp.commands.plan import read
from diffusers_dp.methods.method import load as load_object
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.runs import forecast as module
from diffusers_dp.runs.diffusion_run import build
from diffusers_dp.runs.forecast import forecast, in_words
from diffusers_dp.runs.plan import plan_run
from support.runs import load


FLAGS = "--accountant rdp --class_names a,b --num_channels 1 --resolution 8 --block_out_channels 8 --num_train_images"


def forecast_of(*flags, images="64", **settings):
    config, facts = read([*FLAGS.split(), images, *flags], "dpdm")
    trained = build(config, facts, "cpu")
    before = {name: value.clone() for name, value in trained.module.state_dict().items()}
    state = torch.get_rng_state()
    found = forecast(facts, plan_run(config, facts), trained, "cpu", config, config.ordinary_training, **settings)
    assert torch.equal(state, torch.get_rng_state()), "the public stream goes on where it was"
    assert all(torch.equal(value, before[name]) for name, value in trained.module.state_dict().items())
    assert all(parameter.grad is None for parameter in trained.module.parameters())
    return found


@pytest.mark.parametrize("name", ["dpdm", "psg", "dp_gan", "gs_wgan", "pate_gan"])
def test_what_is_tried_is_on_the_device_of_the_run(name):
    flags = "--accountant rdp --class_names a,b --num_channels 1 --resolution 8 --num_train_images 64".split()
    trained = load_object(METHODS[name].build)(*read(flags, name), torch.device("meta"))
    state = trained.module.state_dict()
    assert {value.device.type for value in state.values()} == {"meta"} and len(state) > 1


@pytest.fixture
def clock(monkeypatch):
    """A call on n rows takes n seconds, and 1 s more."""
    monkeypatch.setattr(module, "_timed", lambda step, number, device: number + 1.0)
    monkeypatch.setattr(module, "LONG_ENOUGH", 5.0)


def test_time_is_in_proportion_to_images_steps_and_processes(clock):
    few = forecast_of("--max_train_steps", "3", "--train_batch_size", "10")
    assert (few.step_seconds, few.seconds) == (pytest.approx(11), pytest.approx(33))
    assert forecast_of("--max_train_steps", "6", "--train_batch_size", "40").seconds == pytest.approx(6 * 41)
    halved = forecast_of("--max_train_steps", "3", "--train_batch_size", "10", count=2)
    assert halved.step_seconds == pytest.approx(6) and "2 processes" in str(halved)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("psg", "--classifier_width 8"),
        ("psg", "--classifier_width 8 --matched_layers last"),
        ("dp_gan", "--block_out_channels 8"),
    ],
)
def test_what_follows_a_noisy_gradient_takes_time(method, given, monkeypatch):
    """Of all kinds of steps: a generator learns every few ones. It gets gradients of what is trained alone. What it
    moves is as it was, and so are the coins."""
    with monkeypatch.context() as patch:
        script = load(method, patch)
    flags = f"--accountant rdp --class_names a,b --num_channels 1 --resolution 8 --num_train_images 64 {given}".split()
    config, facts = read([*flags, "--max_train_steps", "3"], method)
    trained, calls = script.build(config, facts, "cpu"), []

    def backward(gradients):
        calls.append({name: value.shape for name, value in gradients.items()})
        trained.backward(gradients)

    timed = dict.fromkeys(("with", "without"))
    before = {name: value.clone() for name, value in trained.module.state_dict().items()}
    monkeypatch.setattr(module, "_timed", lambda step, number, device: step(number) or number + 1.0)
    monkeypatch.setattr(module, "LONG_ENOUGH", 0.0)
    for name, follows in (("with", backward), ("without", None)):
        torch.manual_seed(0)
        other = replace(trained, backward=follows)
        timed[name] = forecast(facts, plan_run(config, facts), other, "cpu", config, ()).step_seconds
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
    assert timed["with"] == pytest.approx(timed["without"] + (module.FOLLOWING + 1) / module.FOLLOWING)
    learned = {name: p.shape for name, p in trained.model.named_parameters() if p.requires_grad}
    assert calls == module.FOLLOWING * [learned]
    assert all(torch.equal(value, before[name]) for name, value in trained.module.state_dict().items())
    assert all(parameter.grad is None for parameter in trained.module.parameters())


def test_a_model_of_a_generators_images_takes_time(clock, monkeypatch):
    """Where a release is one: it is another model than the one of DP-SGD, and by its own loss."""
    with monkeypatch.context() as patch:
        script = load("dp_gan", patch)
    monkeypatch.setattr(module, "_following", lambda trained, device: 0.0)
    seconds, made, of_images = [], [], module.new_image_model

    def new(facts, network, device):
        pipeline, model, loss = of_images(facts, network, device)
        made.append(model)
        return pipeline, model, lambda given, *others: made.append(given) or loss(given, *others)

    monkeypatch.setattr(module, "new_image_model", new)
    for kind in ("one_step", "residual"):
        given = f"--generator {kind} --diffusion_steps 9 --diffusion_batch_size 4 --max_train_steps 3"
        config, facts = read([*FLAGS.split(), "64", *given.split()], "dp_gan")
        built, stages = script.build(config, facts, "cpu"), config.ordinary_training
        found = forecast(facts, plan_run(config, facts), built, "cpu", config, stages)
        seconds.append(found.other_seconds)
    assert seconds == [0, pytest.approx(9 * 5)]
    assert len(made) > 1 and all(model is made[0] for model in made)


def test_disk_holds_every_image_and_checkpoint(clock):
    small, large = forecast_of(images="100"), forecast_of(images="1100")
    assert large.disk_bytes - small.disk_bytes == 1000 * 64
    assert forecast_of("--checkpoints_total_limit", "9", images="100").disk_bytes > small.disk_bytes
    assert small.memory_bytes > 0


def test_more_than_a_day_is_warned_of(clock):
    short = forecast_of("--max_train_steps", "1")
    assert "warning" not in str(short)
    assert "warning: that is more than a day" in str(replace(short, steps=10**5))
    assert [in_words(seconds) for seconds in (2.0, 120.0, 7200.0, 2e5)] == [
        "2.0 seconds", "2.0 minutes", "2.0 hours", "2.3 days",
    ]  # fmt: skip


def test_too_much_at_once_is_not_tried_again(monkeypatch):
    def timed(step, number, device):
        if number > 4:
            raise torch.OutOfMemoryError("no")
        return number / 100

    monkeypatch.setattr(module, "_timed", timed)
    monkeypatch.setattr(module, "LONG_ENOUGH", 0.3)
    assert module._seconds(None, 64, 64, torch.device("cpu")) == pytest.approx(0.64)


def test_a_step_is_really_taken():
    start = time.perf_counter()
    found = forecast_of("--max_train_steps", "1", "--train_batch_size", "4", "--noise_multiplicity", "1")
    assert 0 < found.step_seconds < time.perf_counter() - start
