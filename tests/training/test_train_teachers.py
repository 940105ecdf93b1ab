# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""GS-WGAN, PATE-GAN, DataLens and G-PATE from the command line to a receipt."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from diffusers_dp import load_verified, verify
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.methods.teachers import AGGREGATIONS, GPATEConfig
from diffusers_dp.models.student import teaching_of
from diffusers_dp.runs.noise import refuse_another_listing
from support import forked
from support.few import few
from support.flags import NUM_IMAGES, RESUME
from support.places import ROOT
from support.runs import independent_epsilon, interrupted, read_ledger, reserved_steps, write_images


METHOD = "gs_wgan"
FLAGS = (
    "--block_out_channels 4,8 --num_teachers 3 --max_train_steps 4 --checkpointing_steps 2 --expert "
    "first_teacher_steps=1 "
    "--expert teacher_batch_size=4 --generated_per_round 6 --expert generator_channels=4 --generator_steps 2 "
    "--expert num_generated_images=6 --diffusion_steps 2 --resolution 8 --num_channels 1 --class_names "
    "left,empty,right "
    f"--num_train_images {NUM_IMAGES} --accountant rdp --target_epsilon 1"
).split()
SMALL = {"bins": ["--expert", "bins_per_value=4"]}
QUICK = ["--skip_preflight"]


def run_flags(tmp_path, *more):
    images = tmp_path / "images"
    given = ["--train_data_dir", str(images)] if images.exists() else write_images(images, "broken")
    return [*FLAGS, *given, "--output_dir", str(tmp_path / "run"), *more]


@pytest.mark.parametrize("aggregation", few(AGGREGATIONS))
def test_a_generator_is_released(aggregation, script, tmp_path):
    """With the pre-flight; one image cannot be read, and a class is empty."""
    script.main(run_flags(tmp_path, "--aggregation", aggregation, *SMALL.get(aggregation, [])))
    run = tmp_path / "run"
    header, rows = read_ledger(run)
    assert {row["stage"] for row in rows} == {"teachers"} and reserved_steps(run, "teachers") == 4
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    query = rows[0]["query"]
    expected = {"gradients": 0.2, "votes": math.sqrt(12), "signs": 2 * math.sqrt(60), "bins": math.sqrt(240)}
    assert query["sensitivity"] == pytest.approx(expected[aggregation]) and query["shares"] == 3
    assert verify.report(run / "release") == 0
    receipt = json.loads((run / "release" / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == METHODS[AGGREGATIONS[aggregation]].title
    assert load_verified(run / "release")(
        class_labels=["left"], num_inference_steps=1, output_type="pt"
    ).images.numel()
    assert not (run / "release" / "teachers-1-of-1").exists() and (run / "private" / "teachers-1-of-1").is_dir()


def test_a_run_that_goes_on_keeps_its_shares(script, tmp_path, monkeypatch):
    """What was lost stays spent, and the key of the shares is that of the first start."""
    flags = run_flags(tmp_path, *QUICK, "--restart_slack", "2")
    interrupted(script, monkeypatch, flags, 4)
    script.main([*flags, *RESUME])
    _, rows = read_ledger(tmp_path / "run")
    assert len({row["query"]["group_key"] for row in rows}) == 1 and reserved_steps(tmp_path / "run", "teachers") == 6
    assert verify.report(tmp_path / "run" / "release") == 0


def test_another_number_of_teachers_does_not_go_on(script, tmp_path, monkeypatch):
    flags = run_flags(tmp_path, *QUICK)
    interrupted(script, monkeypatch, flags, 3)
    before = (tmp_path / "run" / "private" / "ledger.jsonl").read_bytes()
    with pytest.raises(UsageError, match="--num_teachers 5 is not what this run began with, 3"):
        script.main([*flags, *RESUME, "--num_teachers", "5"])
    with pytest.raises(UsageError, match="other ids than when this run began"):
        asked = [LedgerRow.read(row) for row in read_ledger(tmp_path / "run")[1]]
        refuse_another_listing("before", "now", SimpleNamespace(asked=asked))
    assert (tmp_path / "run" / "private" / "ledger.jsonl").read_bytes() == before


def test_two_processes_hold_the_shares_together(tmp_path):
    program = ROOT / "training" / "train_teachers.py"
    done = forked.run(program, *run_flags(tmp_path, *QUICK), folder=tmp_path, count=2)
    assert done.returncode == 0, done.stderr
    assert verify.report(tmp_path / "run" / "release") == 0
    assert {each.name for each in (tmp_path / "run" / "private").glob("teachers-*-of-*")} == {
        "teachers-1-of-2", "teachers-2-of-2",
    }  # fmt: skip
    assert len(read_ledger(tmp_path / "run")[1]) == 2


@pytest.mark.parametrize("bins", few([2, 10]))
def test_votes_for_bins_show_the_whole_gradient(bins, monkeypatch):
    """Each image shows a few directions, all images together every one; a vote alone says which bin, not how far."""
    monkeypatch.setattr(GPATEConfig, "projected_values", 3)
    config = GPATEConfig(
        generated_per_round=300, bins_per_value=bins, resolution=8, num_channels=1,
        class_names=["any"],
    )  # fmt: skip
    teaching, follow = teaching_of(config, (1, 8, 8), None)
    gradient = torch.randn(64, generator=torch.Generator().manual_seed(1)).view(1, 1, 4, 4, -1).sum(-1)
    images = torch.zeros(300, 1, 4, 4, requires_grad=True)
    scores = teaching.blame(lambda images, labels: (images * gradient).flatten(1).sum(1), images.detach(), None)
    votes = F.one_hot(scores.argmax(2), bins).float()
    follow(None, images, None, votes).backward()
    step = -images.grad.sum(0).flatten()
    assert F.cosine_similarity(step, gradient.flatten(), dim=0) > 0.8
