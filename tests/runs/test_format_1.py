# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Format 1, `docs/release.md`: a release and a stopped run that were kept when it was fixed. Every later version
verifies and draws from the one, and finishes the other. Nobody makes them again."""

import shutil

import numpy as np
import pytest

from diffusers_dp import load_verified
from diffusers_dp.verify import verify
from support.flags import RESUME, SHORT_FETA_PRO
from support.ledgers import independent_epsilon
from support.places import TESTS
from support.runs import check_finished, load, read_ledger, write_images


@pytest.fixture
def kept(tmp_path):
    shutil.unpack_archive(TESTS / "format_1.zip", tmp_path)
    return tmp_path


def test_a_release_is_verified_and_drawn_from(kept):
    receipt, problems = verify(kept / "release")
    assert problems == [] and receipt["format"] == "diffusers_dp/1"
    pipeline = load_verified(kept / "release")
    images = pipeline(class_labels=[0, 2], num_inference_steps=2, output_type="np").images
    assert images.shape == (2, 8, 8, 1) and np.isfinite(images).all()


def test_a_stopped_run_is_finished(kept, monkeypatch):
    """Its answers are not asked again, its steps are taken from the checkpoint, and its rows stay."""
    run = kept / "stopped"
    _, before = read_ledger(run)
    load("feta_pro", monkeypatch).main(
        [*SHORT_FETA_PRO, *write_images(kept / "images"), "--output_dir", str(run), *RESUME]
    )
    header, after = read_ledger(run)
    assert after[: len(before)] == before
    check_finished(run, 4)
    assert independent_epsilon(run / "private" / "ledger.jsonl", interval=1e-3) <= header["target_epsilon"] + 1e-3
