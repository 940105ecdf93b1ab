# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--noise exact` from the command line to a receipt that says proven: bands, an interruption, patients, refusals."""

import pytest

from diffusers_dp import verify
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms.mechanism import STEPS
from support.few import few
from support.flags import NUM_IMAGES, RESUME, SHORT_FETA_PRO
from support.patients import unit_flags, write_dataset
from support.runs import (
    BITS_OF_A_CPU,
    interrupted,
    load,
    read_ledger,
    receipt_of,
    reserved_steps,
    write_images,
    write_public,
)


EXACT = ["--noise", "exact"]


def run_flags(tmp_path, *more):
    images = tmp_path / "images"
    given = ["--train_data_dir", str(images)] if images.exists() else write_images(images, "broken")
    return [*SHORT_FETA_PRO, *given, "--output_dir", str(tmp_path / "run"), *EXACT, *more]


@BITS_OF_A_CPU
@pytest.mark.parametrize("bands", few(["4", "1"]))
def test_a_run_that_was_interrupted_is_proven(script, tmp_path, monkeypatch, untrained_judge, bands):
    """One image cannot be read, and a class is empty."""
    flags = run_flags(tmp_path, "--noise_bands", bands, "--train_batch_size", "6", "--evaluation_reserve", "0.2")
    interrupted(script, monkeypatch, flags, 5)
    with pytest.raises(UsageError, match="--noise is float, and this run began with exact: give --noise exact"):
        script.main([*flags, *RESUME, "--noise", "float"])
    script.main([*flags, *RESUME])
    receipt, (_, rows) = receipt_of(tmp_path / "run"), read_ledger(tmp_path / "run")
    assert {row["stage"] for row in rows} == {"central_images", "frequency_features", "dp_sgd", "evaluation_reserve"}
    assert all(row["query"]["grid"] == STEPS for row in rows)
    assert all(row["sampling_probability"] * 2**53 % 1 == 0 for row in rows)
    assert reserved_steps(tmp_path / "run") > 4, "what was lost is counted"
    assert receipt["status"] == "proven" and verify.report(tmp_path / "run" / "release") == 0


FOLDER = (
    "--class_names left,empty,right --resolution 8 --num_channels 1 --skip_preflight --accountant rdp "
    f"--num_train_images {NUM_IMAGES} --target_epsilon 1 "
)
DP_SGD = "--max_train_steps 4 --train_batch_size 7 --checkpointing_steps 2 "
OTHERS = {
    "moments": "--num_frequencies 9 --images_per_class 4 --num_parts 2",
    "pe": "--images_per_class 2 --candidates_per_class 4 --variation_strengths 0.5 --generator public_images "
    "--public_margin 1",
    "psg": f"{DP_SGD} --images_per_class 2 --expert classifier_width=8 --steps_per_network 3 --network_steps 1",
    "dp_gan": f"{DP_SGD} --block_out_channels 4,8 --expert discriminator_channels=4 --discriminator_steps 2",
    "dp_merf": "--num_features 20 --generator_steps 2 --expert generator_batch_size=6 --block_out_channels 8,16 "
    "--noise_multiplier class_counts=20",
}


@BITS_OF_A_CPU
@pytest.mark.parametrize("method", few(OTHERS, 0, 1))
def test_other_methods_are_proven(method, tmp_path, monkeypatch):
    script, run = load(method, monkeypatch), tmp_path / "run"
    given = [*write_images(tmp_path / "images"), "--output_dir", str(run), *EXACT]
    given += write_public(tmp_path / "public")[:2] if method == "pe" else []
    script.main([*(FOLDER + OTHERS[method]).split(), *given])
    assert receipt_of(run)["status"] == "proven" and verify.report(run / "release") == 0


def test_patients_are_proven_where_no_gradient_is_asked(tmp_path, monkeypatch):
    script, run = load("moments", monkeypatch), tmp_path / "run"
    write_dataset(tmp_path / "scans", "patient 5")
    flags = unit_flags(tmp_path / "scans", run)
    facts = flags[flags.index("--dataset_name") : flags.index("--train_batch_size")]
    script.main([*facts, "--output_dir", str(run), *EXACT, "--skip_preflight", *OTHERS["moments"].split()])
    assert receipt_of(run)["status"] == "proven" and verify.report(run / "release") == 0
