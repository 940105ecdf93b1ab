# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What noisy answers taught a model lies in `private/`, says what it is, and is no public model to begin with."""

import json

import pytest
from diffusers import EDMDPMSolverMultistepScheduler

from diffusers_dp.errors import UsageError
from diffusers_dp.models.feature_generator import FeatureGenerator
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.marked import save_unreleased
from diffusers_dp.runs.pretrained import keep_pretrained, kept_pretrained
from support.ledgers import protected, unprotected
from support.public_models import load, make_unet


WORDS = {protected: "no receipt says what that cost", unprotected: "trained WITHOUT any privacy guarantee"}


def pipeline():
    return DPImagePipeline(make_unet(), EDMDPMSolverMultistepScheduler())


@pytest.mark.parametrize(("origin", "chosen"), [({}, True), ({"epsilon": 1.0, "delta": 1e-5}, False)])
def test_what_public_images_taught_may_depend_on_sensitive_ones(origin, chosen, tmp_path):
    """A noisy answer chose the images (PrivImage), or they are a release. A run that goes on loads them all the
    same."""
    keep_pretrained(tmp_path, pipeline(), {"kind": "public images", **origin}, chosen=chosen)
    DPImagePipeline.from_pretrained(tmp_path / "pretrained").save_pretrained(tmp_path / "copy")
    for name in ("pretrained", "copy"):
        with pytest.raises(UsageError, match="no receipt says what that cost; begin with"):
            load(str(tmp_path / name))
    assert kept_pretrained(tmp_path, make_unet()) == {"kind": "public images", **origin}


@pytest.mark.parametrize("ledger", WORDS)
def test_a_generator_says_what_it_is(ledger, tmp_path, caplog):
    save_unreleased(FeatureGenerator((1, 8, 8), 2, channels=4), tmp_path / "generator", ledger())
    config = json.loads((tmp_path / "generator" / "config.json").read_text())
    assert WORDS[ledger] in config["privacy"]["statement"]
    again = FeatureGenerator.from_pretrained(tmp_path / "generator")
    assert again.config.privacy == config["privacy"] and not caplog.records
