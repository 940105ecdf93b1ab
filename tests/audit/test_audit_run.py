# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The audit of a training script's own loop, the command, and what it writes."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from diffusers_dp import cli, verify
from diffusers_dp.audit import training_run
from diffusers_dp.audit.canaries import WatchedImages
from diffusers_dp.audit.training_run import audit_run
from diffusers_dp.data.images import public_facts
from diffusers_dp.gradients import step
from diffusers_dp.methods.config import load_config
from diffusers_dp.privacy import passages
from diffusers_dp.runs.diffusion_run import build as build_model
from diffusers_dp.runs.plan import plan_run
from support.few import few
from support.releases import add_audit, make_release


FLAGS = (
    "--block_out_channels 4,4 --max_train_steps 4 --sample_rate 1/8 --noise_multiplicity 2 --curriculum none "
    "--accountant rdp --num_frequency_features 50"
).split()


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    """They have tests of their own."""
    monkeypatch.setattr(training_run, "probes_of_steps", lambda *_, **__: [])
    monkeypatch.setattr(training_run, "FEWEST_STEPS", 2)


def audit(build=build_model, flags=(), canaries=600, steps=4):
    config = load_config([*FLAGS, *flags])
    facts = public_facts(config.data)
    return audit_run(
        partial(build, config, facts, "cpu"), "x.py", config, facts, plan_run(config, facts), canaries, steps
    )


def test_an_honest_script_is_valid(monkeypatch):
    read = []
    monkeypatch.setattr("diffusers_dp.data.images.load_images", lambda *_: read.append(1))
    found = audit()
    assert found.verdict == "VALID", found.reasons
    assert not read and found.as_json()["read_private_data"] is False
    honest, off, halved = found.outcomes["dp_sgd"]
    assert honest.claimed_epsilon == pytest.approx(2, abs=1e-3)
    assert max(honest.formal_bound, honest.gaussian_estimate) < 2 < off.gaussian_estimate
    assert any("noise: standard deviation" in failure for failure in halved.failures)
    assert (found.settings["steps"], found.settings["steps_of_a_broken_run"]) == (4, 2)
    assert found.settings["noise_multiplier"] > 1  # the honest run's, though the broken ones ask for less
    json.dumps(found.as_json(), allow_nan=False)


def noise_halved(monkeypatch):
    original = step.add_noise
    monkeypatch.setattr(passages, "add_noise", lambda total, *, std, **rest: original(total, std=std / 2, **rest))


def clipping_off(monkeypatch):
    monkeypatch.setattr(step, "clip_factors", lambda norms, max_norm: torch.ones_like(norms))


def shuffled(monkeypatch):
    left: list[torch.Tensor] = [torch.zeros(0)]

    def fault(count, rate, generator):
        if len(left[0]) < round(count * rate):
            left[0] = torch.randperm(count)
        drawn, left[0] = left[0].split([round(count * rate), len(left[0]) - round(count * rate)])
        return drawn.sort().values

    monkeypatch.setattr(passages, "poisson_sample", fault)


def asks_for_less_noise(monkeypatch):
    """What the loop asks for is not what was calibrated."""
    original = training_run.run_dp_sgd

    def fault(door, trained, row, *rest, **options):
        less = replace(row, mechanism=row.mechanism.with_noise(row.noise_multiplier / 2))
        return original(door, trained, less, *rest, **options)

    monkeypatch.setattr(training_run, "run_dp_sgd", fault)


def divides_by_another_number(monkeypatch):
    original = WatchedImages.noisy_gradient

    def fault(self, model, loss, mechanism, **query):
        return original(self, model, loss, mechanism, **{**query, "normaliser": query["normaliser"] + 1})

    monkeypatch.setattr(WatchedImages, "noisy_gradient", fault)


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    few(
        [
            (noise_halved, "noise: standard deviation"),
            (clipping_off, "scores: mean with the record"),
            (shuffled, "dispersion of batch sizes"),
            (divides_by_another_number, "divisor"),
        ]
    ),
)
def test_faults_are_noticed(fault, caught_by, monkeypatch):
    fault(monkeypatch)
    found = audit()
    assert found.verdict == "INCONCLUSIVE" and any(caught_by in reason for reason in found.reasons), found.reasons


@pytest.mark.slow
def test_a_loop_that_asks_for_less_noise_exceeds_its_budget(monkeypatch):
    """The ledger refuses it: epsilon 2 is what it may spend."""
    from diffusers_dp.errors import BudgetExceeded

    asks_for_less_noise(monkeypatch)
    with pytest.raises(BudgetExceeded):
        audit()


def test_too_few_steps_are_never_valid(monkeypatch):
    monkeypatch.setattr(training_run, "FEWEST_STEPS", 20)
    found = audit(steps=2, canaries=200)
    assert found.verdict == "INCONCLUSIVE"
    assert "too few steps to see reuse of noise and shuffling" in found.reasons


# The command.


def command(*arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(["audit", *map(str, arguments)])
    return stop.value.code


def test_the_command_writes_json(tmp_path, capsys):
    code = command("run", *FLAGS, "--audit_steps", 3, "--num_canaries", 500, "--output_dir", tmp_path / "run")
    said = capsys.readouterr().out
    assert code == 0 and "VALID" in said and "weaker" in said and "private data read: no" in said
    written = json.loads((tmp_path / "run" / "private" / "audit.json").read_text())
    assert written["verdict"] == "VALID" and written["settings"]["num_canaries"] == 500
    assert (tmp_path / "run" / "private").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "run" / "release").exists()
    assert written["mechanisms"]["dp_sgd"]["noise off"]["rejected_by"]


# The receipt.


def test_the_audit_field_lies_outside_the_hashes(tmp_path):
    release = make_release(tmp_path)
    add_audit(release, {"verdict": "INCONCLUSIVE"})
    receipt, problems = verify.verify(release)
    assert problems == [] and receipt["audit"]["verdict"] == "INCONCLUSIVE"
