# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pre-flight audit: part of every training, and of no dry run; a fault stops it before anything is spent or
written."""

import re
import sys

import pytest
import torch
from tqdm.auto import tqdm

from diffusers_dp.accounting.ledger_row import DP_SGD
from diffusers_dp.audit import mechanism_audit
from diffusers_dp.audit.mechanism_audit import audit_mechanism
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.audit.stand_ins import AuditedModel
from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import IntegrityError
from diffusers_dp.gradients import step
from diffusers_dp.methods.config import load_config
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.runs.diffusion_run import build
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.plan import plan_run
from support.few import few


TINY = (
    "--block_out_channels 8,16 --max_train_steps 2 --spatial_steps 2 --frequency_steps 2 --generator_steps 2 "
    "--expert num_auxiliary_images=20 --num_frequency_features 50 --num_inference_steps 2 --expert "
    "generator_channels=4 "
    "--train_batch_size 64 --noise_multiplicity 2 --accountant rdp --target_epsilon 1"
).split()


def test_a_fault_stops_the_run_before_anything_is_spent(script, tmp_path, monkeypatch):
    """Clipping is off."""
    monkeypatch.setattr(step, "clip_factors", lambda norms, max_norm: torch.ones_like(norms))
    with pytest.raises(IntegrityError, match="sensitivity") as error:
        script.main([*TINY, "--output_dir", str(tmp_path / "run")])
    assert error.value.exit_code == 4 and "nothing was spent" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", ["--skip_preflight", "--dry_run"])
def test_it_can_be_left_out(flag, script, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(script.main.__globals__, "preflight", lambda *_: pytest.fail("not asked for"))
    script.main([*TINY, flag, "--output_dir", str(tmp_path / "run")])
    assert "Pre-flight" not in capsys.readouterr().out


def plan_of_units(*flags):
    """A run of 300 patients, which asks a query about its finished model as well."""
    wanted = (
        "--dataset_name scans --unit_column patient_id --num_train_units 300 --num_train_images 900 --class_names a,b "
        "--resolution 8 --num_channels 1 --dry_run --evaluation_reserve 0.02"
    )
    config = load_config([*TINY, *wanted.split(), *flags])
    facts = public_facts(config.data)
    return config, facts, plan_run(config, facts)


def test_a_run_of_units_is_probed_with_units():
    """Also where --max_images_per_unit is left at its default."""
    assert plan_of_units()[2].rows["dp_sgd"].mechanism.max_images_per_unit == 8
    digits = load_config(TINY)
    assert plan_run(digits, public_facts(digits.data)).rows["dp_sgd"].mechanism.max_images_per_unit is None


def halved(monkeypatch, where):
    """Noise of steps, or of answers, is halved at doors that have units."""
    honest = PrivateGenerator.normal

    def normal(self, shape, std, device="cpu"):
        frame = sys._getframe(1)
        while frame.f_code.co_name in ("normal", "add_noise", "_covered", "answer"):
            frame = frame.f_back
        door = frame.f_locals.get("self")
        broken = frame.f_code.co_name == where and door._records.units is not None
        return honest(self, shape, std, device) / (1 + broken)

    monkeypatch.setattr(PrivateGenerator, "normal", normal)


@pytest.mark.parametrize(
    ("where", "named"),
    few(
        [
            (None, None),
            ("noisy_gradient", "noise at the door: standard deviation"),
            ("noisy_sum", "evaluation_reserve: evaluation_reserve: standard deviation"),
        ],
        1,
    ),
)
def test_noise_that_is_halved_where_units_are_used_stops_the_run(where, named, monkeypatch):
    """The real model, units and the query about a finished model are part of it. It keeps to one thread: several
    would wait for each other, and cost many times the work."""
    config, facts, plan = plan_of_units()
    trained = build(config, facts, "cpu")
    denoiser, loss = trained.model, trained.loss
    bars, threads, seen, watched = [], torch.get_num_threads(), [], mechanism_audit.stand_in_runs

    class Bar(tqdm):
        def close(self):
            bars.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(mechanism_audit, "tqdm", Bar)
    if where is None:
        monkeypatch.setattr(
            mechanism_audit, "stand_in_runs", lambda *a, **k: seen.append(torch.get_num_threads()) or watched(*a, **k)
        )
        torch.set_num_threads(threads + 1)
        try:
            audit = audit_mechanism(
                facts, plan, {DP_SGD: AuditedModel(denoiser, loss, facts.image_shape, facts.class_names)}, quick=True
            )
            assert seen == [1] and torch.get_num_threads() == threads + 1
        finally:
            torch.set_num_threads(threads)
        assert audit.verdict == "VALID", audit.reasons
        assert set(audit.outcomes) == set(plan.rows) >= {"evaluation_reserve", "dp_sgd"}
        done, total = bars[0]  # of a bar that knows its end, and gets there
        assert done == total > 7
    else:
        halved(monkeypatch, where)
        with pytest.raises(IntegrityError, match=re.escape(named)):
            preflight(facts, plan, Trained(denoiser.unet, denoiser, loss))
