# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sample` as tests call it."""

import datasets
import numpy as np

from diffusers_dp import cli


def run(release, output, *flags):
    asked = ["sample", str(release), "--output_dir", str(output), "--num_images", "10"]
    cli.main([*asked, "--num_inference_steps", "2", *flags])
    return read(output)


def read(folder):
    """Pixels and labels, as whoever uses the dataset gets them."""
    table = datasets.load_dataset(str(folder), split="train", cache_dir=str(folder / "cache"))
    labels = table["label"] if "label" in table.features else None
    return np.stack([np.asarray(image) for image in table["image"]]), labels, table.features
