# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The pre-flight audit: part of every training, and of no dry run; a fault stops it before anything is spent or written."""

from pathlib import Path

import pytest
import torch

from diffusers_dp import sensitive
from diffusers_dp.audit.mechanism import AuditedModel, Mechanism
from diffusers_dp.audit.preflight import audit_mechanism
from diffusers_dp.config import load_config
from diffusers_dp.data import public_facts
from diffusers_dp.dpsgd import step
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.planning import plan_run


SCRIPT = Path(__file__).resolve().parent.parent / "training" / "train_feta_pro.py"
TINY = (
    "--block_out_channels 8,16 --max_train_steps 2 --spatial_steps 2 --frequency_steps 2 --generator_steps 2 "
    "--num_auxiliary_images 20 --num_frequency_features 50 --num_inference_steps 2 --generator_channels 4 --train_batch_size 64 "
    "--noise_multiplicity 2"
).split()


def noise_halved(monkeypatch):
    original = step.add_noise
    monkeypatch.setattr(sensitive, "add_noise", lambda total, *, std, **rest: original(total, std=std / 2, **rest))


def clipping_off(monkeypatch):
    monkeypatch.setattr(step, "clip_factors", lambda norms, max_norm: torch.ones_like(norms))


def test_it_passes_and_says_so(script, tmp_path, capsys):
    script.main([*TINY, "--output_dir", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "Pre-flight audit:" in out and "checks passed" in out
    assert (tmp_path / "run" / "release").is_dir()


@pytest.mark.parametrize(("fault", "named"), [(noise_halved, "standard deviation"), (clipping_off, "sensitivity")])
def test_a_fault_stops_the_run_before_anything_is_spent(fault, named, script, tmp_path, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(IntegrityError, match=named) as error:
        script.main([*TINY, "--output_dir", str(tmp_path / "run")])
    assert error.value.exit_code == 4 and "nothing was spent" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", ["--skip_preflight", "--dry_run"])
def test_it_can_be_left_out(flag, script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "preflight", lambda *_: pytest.fail("not asked for"))
    script.main([*TINY, flag, "--output_dir", str(tmp_path / "run")])
    assert "Pre-flight" not in capsys.readouterr().out


def test_a_folder_that_holds_a_run_is_refused_before_it(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "preflight", lambda *_: pytest.fail("audited for nothing"))
    (tmp_path / "release").mkdir()
    with pytest.raises(UsageError, match="holds another run"):
        script.main([*TINY, "--output_dir", str(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--curriculum", "frequency"],
        ["--truncated_poisson", "--curriculum", "frequency", "--target_epsilon", "2"],
    ],
    ids=str,
)
def test_it_audits_the_questions_of_the_plan(flags, script):
    args = load_config([*TINY, *flags])
    facts = public_facts(args)
    plan = plan_run(args, facts)
    model = AuditedModel(*script.build_denoiser(args, facts, "cpu"), facts.image_shape, facts.class_names)
    audit = audit_mechanism(args, facts, plan, model, quick=True)
    assert audit.verdict == "VALID", audit.reasons
    assert set(audit.outcomes) == set(plan.rows)
    for name in ("sensitivity of the model", "additivity of the model"):
        assert any(check.name.startswith(name) for check in audit.checks)


def test_a_run_of_units_is_probed_with_units():
    """Also where --max_images_per_unit is left at its default."""
    flags = [*TINY, "--dataset_name", "scans", "--unit_column", "patient_id", "--num_train_units", "300"]
    flags += [
        "--num_train_images",
        "900",
        "--class_names",
        "a,b",
        "--resolution",
        "8",
        "--num_channels",
        "1",
        "--dry_run",
    ]
    config = load_config([*flags, "--accountant", "rdp"])
    plan = plan_run(config, public_facts(config))
    assert Mechanism.of(plan, config).max_images_per_unit == 8
    digits = load_config([*TINY, "--accountant", "rdp"])
    assert Mechanism.of(plan, digits).max_images_per_unit is None
