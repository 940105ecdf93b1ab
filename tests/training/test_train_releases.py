# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The training script where releases of one data set add up, and where a unit is more than an image."""

import json

import numpy as np
import pytest

from diffusers_dp import verify
from diffusers_dp.errors import UsageError
from support import forked
from support.flags import RESUME
from support.patients import unit_flags, write_dataset
from support.places import ROOT
from support.runs import BITS_OF_A_CPU, interrupted, receipt_of


def test_releases_of_one_data_set_add_up(script, tmp_path, folder_flags, monkeypatch, capsys):  # noqa: F811
    flags = [*folder_flags, "--curriculum", "none", "--max_train_steps", "4", "--checkpointing_steps", "2"]
    flags += ["--dataset_id", "scans", "--ledger_dir", str(tmp_path / "ledgers"), "--dataset_epsilon", "3"]
    flags += ["--target_epsilon", "2"]
    second, third = ([*flags, "--output_dir", str(tmp_path / name)] for name in ("second", "third"))
    interrupted(script, monkeypatch, flags, 3)
    assert not (tmp_path / "run" / "private" / "ledger.jsonl").exists()

    script.main([*second, "--target_epsilon", "1"])
    assert "with 1 other release(s) of scans" in capsys.readouterr().out
    receipt = receipt_of(tmp_path / "second")
    (prior,) = receipt["prior_releases"]
    assert sum(event["steps_reserved"] for event in prior["events"]) == 4, "the interrupted run: reserved is spent"
    assert (
        receipt["claimed_epsilon"]["rdp"]["epsilon"] <= 1 < receipt["dataset"]["epsilon_of_all_releases"]["pld"] <= 3
    )
    assert verify.report(tmp_path / "second" / "release") == 0

    with pytest.raises(UsageError, match="--dataset_id scans"):
        script.main([*folder_flags, "--resume_from_checkpoint", "latest"])
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    receipt = receipt_of(tmp_path / "run")
    assert receipt["resumes"] == [{"step": 2, "fresh_entropy": True}]
    assert verify.report(tmp_path / "run" / "release") == 0
    assert len((tmp_path / "ledgers" / "scans.jsonl").read_text().splitlines()) == 6

    spent = receipt["dataset"]["epsilon_of_all_releases"]["pld"]
    with pytest.raises(UsageError, match="--dataset_epsilon"):
        script.main([*third, "--dataset_epsilon", str(spent)])
    assert not (tmp_path / "third" / "release").exists()


def test_a_patient_is_the_unit(script, tmp_path, capfd):
    """N, q, delta and divisors count patients, and nothing outside private/ tells that one is missing."""
    said, receipts = [], []
    for name, without in (("all", None), ("less", "patient 5")):
        write_dataset(tmp_path / name, without)
        script.main(unit_flags(tmp_path / name, tmp_path / f"run_{name}"))
        said.append(capfd.readouterr().out.splitlines()[:5])
        receipts.append(receipt_of(tmp_path / f"run_{name}"))
    assert verify.report(tmp_path / "run_all" / "release") == 0
    assert said[0] == said[1]
    receipt, other = receipts
    assert receipt["unit_of_privacy"] == "patient_id"
    assert (
        receipt["public_facts"] | {"num_units": 6, "num_images": 30, "max_images_per_unit": 4}
        == receipt["public_facts"]
    )
    central, frequency, *steps = receipt["events"]
    assert all(event["dataset_size"] == 6 and event["partition"] is None for event in receipt["events"])
    assert [step["sampling_probability"] for step in steps] == [0.5] * len(steps)
    assert frequency["query"]["normaliser"] == 6 and central["query"]["normaliser"] == pytest.approx(0.1 * 6 / 2)
    assert receipt["delta"] == pytest.approx(1 / (6 * np.log(6)))
    assert {**receipt, "files": None} == {**other, "files": None}, "but for the hashes of weights and samples"
    with pytest.raises(UsageError, match="--num_train_units"):
        script.main([*unit_flags(tmp_path / "all", tmp_path / "run_few"), "--num_train_units", "5"])
    assert not (tmp_path / "run_few").exists()


@BITS_OF_A_CPU
@pytest.mark.slow
def test_a_table_of_patients_in_two_processes_that_go_on_with_a_run_of_one(script, tmp_path, monkeypatch):
    """One line names no file, and one has no patient. Patients that changed places would be in two groups."""
    write_dataset(tmp_path / "scans")
    table = tmp_path / "scans" / "metadata.csv"
    lines = table.read_text().replace("07.png", "7.png").replace("patient 3", "NA", 1).splitlines(keepends=True)
    table.write_text("".join(lines))
    flags = unit_flags(tmp_path / "scans", tmp_path / "run")
    flags += (
        "--noise_bands 4 --train_batch_size 1 --max_train_steps 4 --checkpointing_steps 2 --restart_slack 4".split()
    )
    interrupted(script, monkeypatch, flags, 7)
    last = [line.rpartition(",") for line in lines[1:3]]
    swapped = [last[0][0] + "," + last[1][2], last[1][0] + "," + last[0][2]]
    table.write_text("".join([lines[0], *swapped, *lines[3:]]))
    with pytest.raises(UsageError, match="other ids than when this run began"):
        script.main([*flags, *RESUME])
    table.write_text("".join(lines))
    done = forked.run(ROOT / "training" / "train_feta_pro.py", *flags, *RESUME, folder=tmp_path, count=2)
    assert done.returncode == 0, done.stderr
    receipt = receipt_of(tmp_path / "run")
    assert receipt["processes"] == [1, 2] and receipt["unit_of_privacy"] == "patient_id"
    assert verify.report(tmp_path / "run" / "release") == 0
    reading = json.loads((tmp_path / "run" / "private" / "cache" / "reading.json").read_text())
    assert reading["unreadable_images"] == 2
