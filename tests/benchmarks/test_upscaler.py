# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A network that learned public images enlarges others better than a bilinear filter."""

import re
import sys
from importlib import import_module

import numpy as np

from diffusers_dp.sampling.upscaler import Upscaler
from support.benchmarks import BENCHMARKS
from support.images import write_dataset


def test_edges_come_back(tmp_path, monkeypatch):
    """Of images of one edge each, which a bilinear image blurs. They have no classes."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    images = np.zeros((600, 1, 16, 16), dtype=np.uint8)
    for number, image in enumerate(images):
        image[0, :, number % 15 + 1 :] = 255
    data, network = write_dataset(tmp_path / "public", images, None, None), tmp_path / "network"
    flags = "--resolution 16 --widths 8 16 --steps 60 --batch_size 16 --learning_rate 5e-3 --output_dir".split()
    monkeypatch.setattr(sys, "argv", ["x", "--dataset_name", str(data), *flags, str(network)])
    import_module("upscaler").main()
    learned, bilinear = map(float, re.findall(r"([\d.]+)[;.]\n?", (network / "README.md").read_text())[-2:])
    assert learned < 0.8 * bilinear and Upscaler.load(network).side == 16
