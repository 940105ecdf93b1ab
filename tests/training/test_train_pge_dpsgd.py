# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PGE with DP-SGD: DPDM's training, and a release whose samples are drawn by Hamiltonian dynamics."""

import json

import numpy as np
from PIL import Image

from diffusers_dp import load_verified, verify
from diffusers_dp.sampling.drawing import Drawing, sample_grid
from support.flags import TINY_RUN
from support.runs import BITS_OF_A_CPU, load, read_ledger, write_images


@BITS_OF_A_CPU
def test_a_release_shows_what_the_sampler_draws(tmp_path, monkeypatch):
    script = load("pge_dpsgd", monkeypatch)
    script.main([*TINY_RUN, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")])
    release = tmp_path / "run" / "release"
    assert verify.report(release) == 0 and {row["stage"] for row in read_ledger(tmp_path / "run")[1]} == {"dp_sgd"}
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == "PGE with DP-SGD" and receipt["curriculum"] == {"sampler": "hmc"}
    pipeline = load_verified(release)
    pipeline.set_progress_bar_config(disable=True)
    shown = np.asarray(Image.open(release / "samples.png"))
    drawn = [
        np.asarray(sample_grid(pipeline, Drawing(solver=solver, num_inference_steps=2))) for solver in ("hmc", "dpm")
    ]
    assert np.array_equal(shown, drawn[0]) and not np.array_equal(shown, drawn[1])
