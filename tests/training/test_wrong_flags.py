# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that cannot be are refused before the first query: nothing is spent, and no `private/` is left."""

import io
import json
import os
import subprocess
import sys

import pytest

from diffusers_dp.errors import Interrupted, UsageError
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.runs.run import TrainingRun
from support.flags import NUM_IMAGES, TINY_RUN
from support.runs import load, read_ledger, write_images, write_public


PE = (
    "--candidates_per_class 6 --variation_strengths 0.5,0.2 --images_per_class 4 --skip_preflight --class_names "
    f"left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1 --generator text"
).split()


@pytest.fixture
def nothing_asked(monkeypatch):
    """Fails where a query reaches the images."""
    for name in ("noisy_sum", "noisy_gradient"):
        monkeypatch.setattr(SensitiveImages, name, lambda *_, **__: pytest.fail("the images were asked"))


def refused(script, flags, tmp_path, said):
    with pytest.raises(UsageError, match=said) as refusal:
        script.main([*flags, "--output_dir", str(tmp_path / "run")])
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 1_000
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--generator", "public_images", "--variations", ","], "--variations is ','; give some of affine"),
        (["--images_per_class", "9000000"], "--images_per_class 9000000 .* 3 classes"),
        (["--candidates_per_class", "9000000"], "--candidates_per_class 9000000"),
        (["--embedding", "network", "--embedding_network", "/nonexistent"], "--embedding_network /nonexistent"),
        (["--font_dir", "/nonexistent"], "--font_dir /nonexistent"),
    ],
)
def test_private_evolution_asks_nothing(given, said, nothing_asked, tmp_path, monkeypatch):
    public = write_public(tmp_path / "public", ("left", "right", "empty"))[:2] if "public_images" in given else []
    refused(load("pe", monkeypatch), [*PE, *public, *write_images(tmp_path / "images"), *given], tmp_path, said)


def test_a_refusal_after_the_first_query_keeps_the_ledger(tmp_path, monkeypatch):
    """What was spent stays spent, whatever is refused later."""
    said = "refused late"

    def refuse(*_):
        raise UsageError(said)

    monkeypatch.setattr("diffusers_dp.runs.evolution.draw_parents", refuse)
    with pytest.raises(UsageError, match=said):
        load("pe", monkeypatch).main([*PE, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")])
    assert [row["stage"] for row in read_ledger(tmp_path / "run")[1]] == ["votes_1"]


@pytest.mark.parametrize("command", [["methods"], ["train", "dpdm", "--accountant", "rdp", "--dry_run"]])
def test_a_closed_pipe_is_no_traceback(command, tmp_path):
    """As with `| head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "diffusers_dp", *command], stdout=writing, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode in (75, 141), done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr and "--output_dir" not in done.stderr


def test_a_run_whose_terminal_went_away_is_resumed(tmp_path, monkeypatch):
    """What it spent stays, and its folder is not blamed."""
    script = load("dpdm", monkeypatch)
    flags = [*TINY_RUN, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    reading, writing = os.pipe()
    os.close(reading)
    closed = io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True)
    publish = TrainingRun._publish
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="closed pipe"):
        patch.setattr(TrainingRun, "_publish", lambda *own: (patch.setattr(sys, "stdout", closed), publish(*own)))
        script.main(flags)
    state = json.loads((tmp_path / "run" / "private" / "status.json").read_text())
    assert state["exit_code"] == 75 and "--resume_from_checkpoint latest" in state["message"]
    script.main([*flags, "--resume_from_checkpoint", "latest"])


# Defaults that cannot fit: what they would buy is not worth the budget.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--generator", "public_images"], "embedded grey digits.*left, empty, right.*--public_dataset_name"),
        (["--generator", "public_images", "--num_channels", "3"], "embedded grey digits.*colour"),
        ([], "--generator is not given.*left.*--generator text.*public_images"),
    ],
)
def test_digits_and_words_do_not_stand_in_for_other_images(given, said, nothing_asked, tmp_path, monkeypatch):
    flags = [*(flag for flag in PE if flag not in ("--generator", "text")), *write_images(tmp_path / "images"), *given]
    refused(load("pe", monkeypatch), flags, tmp_path, said)
