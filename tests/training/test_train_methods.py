# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The training scripts of DPDM and DP-FETA from their command lines: whole runs, crashes, damaged images; and what all
scripts share."""

import json
import re

import pytest
import torch

from diffusers_dp import SensitiveImages, verify
from diffusers_dp.evaluation.warm_up_features import SPATIAL, warm_up_features
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.release.allow_list import RELEASE_FILES
from support.flags import NUM_IMAGES, TINY_RUN
from support.runs import files, independent_epsilon, interrupted, load, read_ledger, status, write_images


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


def receipt_of(run):
    return json.loads((run / "release" / "privacy_receipt.json").read_text())


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
    kept = [json.loads(path.read_text()) for path in run.glob("private/*/model_index.json")]
    assert [index["privacy"]["status"] for index in kept] == ["unreleased" for _ in asked]


@pytest.mark.parametrize("way", ["dpdm", "dp_feta mode"], indirect=True)
def test_resuming_after_a_crash(way, tmp_path, monkeypatch):
    """In the middle of DP-SGD: nothing is asked again, and the total stays within the target."""
    script, flags, asked = way
    flags = [*flags, "--max_train_steps", "4", "--checkpointing_steps", "2"]
    run = tmp_path / "run"
    interrupted(script, monkeypatch, flags, 3 + 2 * len(asked))
    _, before = read_ledger(run)
    assert not (run / "release").exists()
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    header, after = read_ledger(run)
    assert after[: len(before) - 1] == before[:-1] and [row["stage"] for row in after].count("dp_sgd") == 2
    assert sum(row["steps_reserved"] for row in after if row["stage"] == "dp_sgd") == 4
    assert independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert receipt_of(run)["resumes"] == [{"step": 2, "fresh_entropy": True}]
    assert verify.report(run / "release") == 0


@pytest.mark.parametrize("way", ["dpdm"], indirect=True)
def test_the_learning_rate_goes_on_where_it_was(way, monkeypatch):
    """Up and down by --lr_scheduler, as in a run that nothing interrupted."""
    script, flags, _ = way
    flags = [
        *flags,
        *"--max_train_steps 5 --checkpointing_steps 2".split(),
        *"--learning_rate 0.1 --lr_scheduler linear --lr_warmup_steps 1".split(),
    ]
    step, taken = torch.optim.Adam.step, []
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (taken.append(self.param_groups[0]["lr"]), step(self)))
    interrupted(script, monkeypatch, flags, 4)
    assert taken == pytest.approx([0, 0.1, 0.075, 0.05])
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert taken[4:] == pytest.approx([0.075])  # two steps were lost, one is left


@pytest.mark.parametrize("kind", ["mean", "mode"])
def test_central_images_are_asked_for_once(kind, tmp_path, monkeypatch):
    """A run that stopped in its warm-up reads the stored answer, and the evaluation shows it."""
    _, flags, (stage,) = WAYS[f"dp_feta {kind}"]
    script = load("dp_feta", monkeypatch)
    flags = [*TINY_RUN, *flags, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    interrupted(script, monkeypatch, flags, 2)
    answer = tmp_path / "run" / "private" / "answers" / stage / "answer.safetensors"
    before = answer.read_bytes()
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("asked again"))
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert answer.read_bytes() == before
    _, tensors = open_sealed(answer.parent)
    small = tensors["answer"]["answer"]
    assert small.shape == (3, 3, 1, 8, 8)
    if kind == "mode":
        assert set(small.unique().tolist()) == {0.25, 0.75}
    found = warm_up_features(tmp_path / "run" / "release", (1, 8, 8), seed=0)
    assert list(found) == [SPATIAL]


@pytest.mark.parametrize("way", ["dp_feta mode"], indirect=True)
def test_a_damaged_or_missing_image_shows_nowhere(way, tmp_path, capsys):
    """Of the same data set: the same table, ledger, files, receipt."""
    script, flags, _ = way
    seen = []
    for last in ("good", "broken", "missing"):
        run = tmp_path / f"run_{last}"
        data = write_images(tmp_path / last, last)
        script.main([*flags, *data, "--output_dir", str(run)])
        receipt = receipt_of(run)
        receipt.pop("files")
        lines = [
            re.sub(r" +[\d.]+$", "", line) for line in capsys.readouterr().out.replace(str(run), "RUN").splitlines()
        ]
        seen.append((lines, receipt, read_ledger(run), files(run / "release"), files(run / "private")))
    assert seen[0] == seen[1] == seen[2]
