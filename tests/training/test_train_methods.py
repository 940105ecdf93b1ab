# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The training scripts of DPDM and DP-FETA from their command lines: whole runs, crashes, damaged images; and what all
scripts share."""

import re

import pytest
import torch

from diffusers_dp import verify
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.dp_sgd_flags import LoopFlags
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.release.allow_list import RELEASE_FILES
from support.flags import NUM_IMAGES, TINY_RUN
from support.places import ROOT, module_of
from support.runs import files, independent_epsilon, interrupted, load, read_ledger, receipt_of, status, write_images


complexity = module_of(ROOT / "benchmarks" / "complexity.py")
WARM_UP = "--spatial_steps 2 --num_central_images 3".split()
#: Flags of each way to run a script, and what it asks before DP-SGD.
WAYS = {
    "dpdm": ("dpdm", [], []),
    "dp_feta mean": ("dp_feta", WARM_UP, ["central_images"]),
    "dp_feta mode": ("dp_feta", [*WARM_UP, "--central_images", "mode"], ["mode_images"]),
}


@pytest.fixture(params=WAYS)
def way(request, tmp_path, monkeypatch):
    """The script, its flags for a tiny run on images in folders, and the rows of its queries."""
    method, flags, asked = WAYS[request.param]
    flags = [*TINY_RUN, *flags, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    return load(method, monkeypatch), flags, asked


def test_from_images_to_release(way, tmp_path, capsys):
    """What was asked is in ledger and receipt, epsilon is that of an independent accountant, and the verifier
    agrees."""
    script, flags, asked = way
    script.main(flags)
    run, out = tmp_path / "run", capsys.readouterr().out
    header, rows = read_ledger(run)
    assert [row["stage"] for row in rows] == [*asked, "dp_sgd", "dp_sgd"]
    assert [row["steps_executed"] for row in rows] == [*(3 for _ in asked), 1, 1]
    assert independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert files(run / "release") == set(RELEASE_FILES) and status(run) == {"exit_code": 0, "message": "done"}
    receipt = receipt_of(run)
    assert [event["stage"] for event in receipt["events"]] == [row["stage"] for row in rows]
    assert (
        receipt["method"]["name"] == METHODS[script.__name__.removeprefix("train_")].title
        and receipt["status"] == "proven_with_assumptions"
    )
    assert verify.report(run / "release") == 0
    card = (run / "release" / "README.md").read_text()
    assert all(f"| {name.replace('_', ' ')} | poisson gaussian |" in card for name in asked)
    if asked == ["mode_images"]:
        query = receipt["events"][0]["query"]
        assert query["sensitivity"] == query["clip_norm"] == 8 and query["num_bins"] == 2
        assert query["normaliser"] == pytest.approx(0.1 * NUM_IMAGES / 3)
        assert receipt["events"][0]["partition"] == "label"
    assert re.findall(r"^warm-up \((\w+)\)", out, re.MULTILINE) == ["spatial" for _ in asked]
    found = complexity.warm_up_features(run, (1, 8, 8))
    assert list(found) == ["spatial features" for _ in asked]
    assert all(complexity.row_of(name, images)["entropy"] > 0 for name, images in found.items())


@pytest.mark.parametrize("way", ["dpdm"], indirect=True)
def test_the_learning_rate_goes_on_where_it_was(way, monkeypatch):
    """Up and down by --lr_scheduler, as in a run that nothing interrupted."""
    script, flags, _ = way
    flags = [
        *flags,
        *"--max_train_steps 5 --checkpointing_steps 2".split(),
        *"--learning_rate 0.1 --lr_scheduler linear --lr_warmup_steps 1".split(),
    ]
    step, taken = torch.optim.AdamW.step, []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: (taken.append(self.param_groups[0]["lr"]), step(self)))
    interrupted(script, monkeypatch, flags, 4)
    assert taken == pytest.approx([0, 0.1, 0.075, 0.05])
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert taken[4:] == pytest.approx([0.075])  # two steps were lost, one is left


@pytest.mark.parametrize("way", ["dpdm"], indirect=True)
def test_adamw_has_the_settings_of_its_flags_and_a_run_keeps_them(way, monkeypatch, tmp_path):
    script, flags, _ = way
    settings = {"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_weight_decay": 0.1, "adam_epsilon": 1e-5}
    flags = [*flags, *"--max_train_steps 5 --checkpointing_steps 2 --learning_rate 0.1".split()]
    flags += [f"--{name}={value}" for name, value in settings.items()]
    optimizers = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: (optimizers.append(self), step(self)))
    interrupted(script, monkeypatch, flags, 4)
    (group,) = optimizers[0].param_groups
    found = (*group["betas"], group["weight_decay"], group["eps"])
    assert found == tuple(settings.values()) and group["decoupled_weight_decay"]
    for other, words in (
        ("--adam_beta2=0.999", "--adam_beta2 is None, and this run began with 0.9: give 0.9"),
        ("--adam_epsilon=1e-6", "--adam_epsilon is 1e-06, and this run began with 1e-05: give 1e-05"),
        ("--learning_rate=0.2", "--learning_rate is 0.2, and this run began with 0.1: give 0.1"),
    ):
        with pytest.raises(UsageError, match=words):
            script.main([*flags, other, "--resume_from_checkpoint", "latest"])
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    receipt, problems = verify.verify(tmp_path / "run" / "release")
    assert problems == [] and settings.items() <= receipt["curriculum"].items()


def test_adamw_with_its_defaults_is_adam():
    torch.manual_seed(0)
    weights, gradients = torch.randn(50), torch.randn(5, 50)
    one, other = (weights.clone().requires_grad_() for _ in range(2))
    for weight, optimizer in (
        (one, torch.optim.Adam([one], lr=0.1)), (other, torch.optim.AdamW([other], lr=0.1, **LoopFlags().adam))
    ):  # fmt: skip
        for weight.grad in gradients:
            optimizer.step()
    assert torch.equal(one, other) and LoopFlags().changed_adam == {}
