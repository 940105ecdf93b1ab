# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-MERF from its command line: one query, a generator fitted to its answer, and a release of one step."""

import json

from diffusers_dp import load_verified, verify
from diffusers_dp.methods import judge
from diffusers_dp.methods.config import CONFIGS
from diffusers_dp.models.judge import load_judge
from diffusers_dp.release.allow_list import JUDGE_FILE, RELEASE_FILES
from diffusers_dp.runs import judge as judge_runs
from support.flags import NUM_IMAGES
from support.runs import files, independent_epsilon, read_ledger, status


METHOD = "dp_merf"
CONFIG = CONFIGS["dp_merf"]
FLAGS = (
    "--block_out_channels 8,16 --generator_steps 2 --expert generator_batch_size=6 --num_features 20 --skip_preflight "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1"
).split()


def test_from_images_to_release(script, flags, tmp_path, capsys, untrained_judge):
    """With a reserve for evaluation: two queries, the total of an independent accountant, and a verifier that
    agrees."""
    script.main([*flags, "--evaluation_reserve", "0.2", "--num_evaluation_images", "6", "--patch_size", "2"])
    run = tmp_path / "run"
    header, rows = read_ledger(run)
    assert [row["stage"] for row in rows] == ["frequency_features", "evaluation_reserve"]
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert files(run / "release") == set(RELEASE_FILES) and status(run) == {"exit_code": 0, "message": "done"}
    receipt = json.loads((run / "release" / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == "DP-MERF" and receipt["status"] == "proven"
    assert "normaliser" not in receipt["public_facts"] and receipt["evaluation"]
    assert receipt["curriculum"]["num_features"] == 20 and receipt["events"][0]["partition"] == "label"
    assert verify.report(run / "release") == 0
    card = (run / "release" / "README.md").read_text()
    assert "dp-sgd" not in card and "| frequency features | gaussian |" in card
    pipeline = load_verified(run / "release")
    assert pipeline.is_one_step and pipeline(class_labels=["left", "right"], output_type="pt").images.shape[0] == 2


def test_its_draws_have_a_judge(script, flags, tmp_path, monkeypatch):
    """A second mechanism beside the sum, in one ledger; the judge is balanced on draws of the generator."""
    monkeypatch.setattr(judge, "STEPS", 4)
    monkeypatch.setattr(judge, "BATCH_SIZE", 8)
    monkeypatch.setattr(judge_runs, "DRAWS", 30)
    script.main([*flags, "--budget", "judge=0.3"])
    release = tmp_path / "run" / "release"
    stages = [row["stage"] for row in read_ledger(tmp_path / "run")[1]]
    assert list(dict.fromkeys(stages)) == ["frequency_features", "judge"]
    assert files(release) == {*RELEASE_FILES, JUDGE_FILE} and verify.report(release) == 0
    found = load_judge(release / JUDGE_FILE, (1, 8, 8), 3)
    assert found.biases.isfinite().all() and found.biases.abs().max() > 0
