# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a tracker is told: step, learning rate, epsilon, one speed; and nothing that the images decide."""

import pytest
from accelerate.state import PartialState

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.errors import UsageError
from diffusers_dp.runs import trackers
from support.flags import DIFFUSION_METHODS, SHORT_RUN
from support.runs import check_finished, files, load, write_images


OWN = {"feta_pro": ["--curriculum", "none"], "dp_feta": "--spatial_steps 1 --num_central_images 2".split()}


@pytest.mark.parametrize("method", DIFFUSION_METHODS)
def test_what_tensorboard_is_told(method, tmp_path, monkeypatch):
    """At each checkpoint of every script; all entries have one time, for the time of a step tells the size of its
    sample."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = [*SHORT_RUN, *OWN.get(method, []), *write_images(tmp_path / "images"), "--report_to", "tensorboard"]
    load(method, monkeypatch).main([*given, "--output_dir", str(tmp_path / "run")])
    check_finished(tmp_path / "run", 4)
    (folder,) = {path.parent for path in (tmp_path / "run").rglob("*tfevents*")}
    assert folder.is_relative_to(tmp_path / "run" / "private")
    events = EventAccumulator(str(folder)).Reload()
    told = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert {name: [step for step, _ in entries] for name, entries in told.items()} == {
        "learning_rate": [2, 4], "epsilon": [2, 4], "expected_images_per_second": [4],
    }  # fmt: skip
    assert 0 < told["epsilon"][0][1] < told["epsilon"][1][1] <= 1
    assert len({event.wall_time for name in told for event in events.Scalars(name)}) == 1
    assert not any(found for kind, found in events.Tags().items() if kind != "scalars")


def test_wandb_is_told_no_more(tmp_path, monkeypatch):
    """Offline; neither what the run prints, nor code, nor the machine's figures."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    PartialState()
    ledger = PrivacyLedger(None, target_epsilon=1.0, target_delta=1e-5, num_images=100, accountant="rdp")
    tracker = trackers.Tracker("wandb", tmp_path)
    tracker.start()
    settings = tracker._tracker.run.settings
    for step in (1, 2):
        tracker.log(step, learning_rate=0.5, ledger=ledger)
    told = set(dict(tracker._tracker.run.summary))
    tracker.finish(2, expected_batch_size=8)
    assert {name for name in told if not name.startswith("_")} == {"learning_rate", "epsilon"}
    assert settings.console == "off" and settings.x_disable_stats and settings.disable_git and not settings.save_code
    written = files(tmp_path)
    assert written and not any("output.log" in name or "requirements" in name or "code/" in name for name in written)


def test_a_tracker_that_cannot_start_leaves_nothing(script, tmp_path, monkeypatch):
    """Early: no image was looked at, nothing was spent."""

    def broken(tracker):
        raise RuntimeError("no key was given\nand more")

    pytest.importorskip("tensorboard")
    monkeypatch.setattr("accelerate.tracking.TensorBoardTracker.start", broken)
    given = [*SHORT_RUN, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    with pytest.raises(UsageError, match=r"--report_to tensorboard could not be started \(no key was given\)"):
        script.main([*given, "--report_to", "tensorboard"])
    assert not (tmp_path / "run").exists()
