# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A network that was trained on public images serves as features of sensitive ones."""

import json
import sys
from importlib import import_module

import numpy as np
import torch

from diffusers_dp.queries.perceptual import PerceptualFeatures
from diffusers_dp.queries.semantic import PublicClassifier
from support.benchmarks import BENCHMARKS
from support.images import write_dataset


def test_what_is_written_can_be_asked_about(tmp_path, monkeypatch):
    """And sees images as it saw them in training: halves of black and white are told apart."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    images = np.zeros((1200, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(1200) % 2
    images[labels == 0, :, :4], images[labels == 1, :, 4:] = 255, 255
    data, network = write_dataset(tmp_path / "public", images, labels, ["above", "below"]), tmp_path / "network"
    flags = "--resolution 8 --feature_resolution 16 --widths 4 8 --blocks 2 --steps 20 --batch_size 16".split()
    monkeypatch.setattr(sys, "argv", ["x", "--dataset_name", str(data), *flags, "--output_dir", str(network)])
    import_module("feature_network").main()
    assert "100.0% of held-out images" in (network / "README.md").read_text()
    assert json.loads((network / "config.json").read_text())["depths"] == [2, 2]
    features = PerceptualFeatures(str(network), (1, 8, 8), 16, layers=("encoder.stages.1",))
    above, below = features(torch.from_numpy(images[:2]) / 255)
    assert features.public_inputs[0]["licence"] == "other"
    assert abs(above.norm() - 1) < 1e-5 and (above - below).norm() > 0.3
    large = torch.from_numpy(images[:2]).repeat_interleave(2, 2).repeat_interleave(2, 3) / 255
    assert PublicClassifier(str(network), (1, 16, 16))(large).argmax(1).tolist() == [0, 1]  # as PrivImage asks it
