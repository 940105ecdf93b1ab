# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The public network that pip brings, by its name in the flags of methods that look through one."""

import pytest

from diffusers_dp import verify
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.queries.efficientnet import EFFICIENTNET, LAST, PYRAMID, WEIGHTS_SHA256, EfficientNetFeatures
from support.flags import NUM_IMAGES
from support.runs import load, read_ledger, receipt_of, write_images, write_public


IMAGES = f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES}".split()
BUDGET = ["--accountant", "rdp", "--target_epsilon", "1", "--skip_preflight", "--noise", "float"]
METHODS_FLAGS = {
    "dp_mepf": "--features perceptual --block_out_channels 8,16 --generator_steps 2 --expert generator_batch_size=6 "
    f"--moments 2 --feature_network {EFFICIENTNET}",
    "pe": "--candidates_per_class 6 --variation_strengths 0.5 --images_per_class 4 --generator public_images "
    f"--embedding network --embedding_network {EFFICIENTNET}",
}  # fmt: skip


@pytest.mark.skipif(not EfficientNetFeatures(()).is_here, reason="no network is installed: diffusers_dp[features]")
@pytest.mark.parametrize("method", METHODS_FLAGS)
def test_a_release_names_the_network_it_came_through(method, tmp_path, monkeypatch):
    public = write_public(tmp_path / "public", ("left", "right", "empty"))[:2] if method == "pe" else []
    given = [*IMAGES, *BUDGET, *METHODS_FLAGS[method].split(), *public, *write_images(tmp_path / "images")]
    load(method, monkeypatch).main([*given, "--output_dir", str(tmp_path / "run")])
    receipt = receipt_of(tmp_path / "run")
    assert verify.verify(tmp_path / "run" / "release")[1] == []
    assert receipt["public_inputs"][-1] == {
        "kind": "feature network", "name": EFFICIENTNET, "weights_sha256": WEIGHTS_SHA256, "licence": "apache-2.0",
    }  # fmt: skip
    if method == "dp_mepf":
        numbers = {row["query"]["num_features"] for row in read_ledger(tmp_path / "run")[1]}
        assert numbers == {EfficientNetFeatures((1, 8, 8), PYRAMID).num_features}


@pytest.mark.parametrize("method", METHODS_FLAGS)
def test_what_it_cannot_be(method, monkeypatch):
    flags = [
        *IMAGES,
        *BUDGET,
        *METHODS_FLAGS[method].split(),
        "--dry_run",
        *(["--public_data_dir", "public"] if method == "pe" else []),
    ]

    def planned(*more):
        return load_config([*flags, *more], METHODS[method])

    def seen(config):
        return config.feature_map if method == "dp_mepf" else config.perceptual

    monkeypatch.setattr("diffusers_dp.queries.efficientnet.find_spec", lambda name: name)
    assert seen(planned()).layers == (PYRAMID if method == "dp_mepf" else LAST)
    if method == "dp_mepf":
        with pytest.raises(UsageError, match="efficientnet_lite0 has layers of its own"):
            seen(planned("--feature_layers", "pooler"))
    monkeypatch.setattr("diffusers_dp.queries.efficientnet.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="efficientnet_lite0 is not installed: in a copy of the repository"):
        seen(planned())
