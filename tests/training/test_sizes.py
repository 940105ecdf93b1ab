# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of 64 and 128 pixels: every training script plans, starts and releases."""

import numpy as np
import pytest
from PIL import Image

from diffusers_dp.pipelines import DPImagePipeline
from support.runs import load


NUM_IMAGES = 6
FLAGS = (
    f"--class_names a,b --num_train_images {NUM_IMAGES} --train_batch_size 2 --max_train_steps 1 --noise_multiplicity "
    "1 --accountant rdp --target_epsilon 1 --block_out_channels 4,4,4 --num_inference_steps 1 --skip_preflight"
).split()
WARM_UP = "--spatial_steps 1 --num_central_images 1 --expert spatial_batch_size=2".split()
OWN = {
    "feta_pro": [
        *WARM_UP,
        *"--frequency_steps 1 --generator_steps 1 --expert num_auxiliary_images=2 --num_frequency_features 10".split(),
        *"--expert generator_channels=4,frequency_batch_size=2,generator_batch_size=2".split(),
    ],
    "dp_feta": [*WARM_UP, "--central_images", "mode"],
    "dpdm": [],
    "dp_diffusion": [],
}


@pytest.mark.parametrize(
    ("method", "side"),
    [
        ("feta_pro", 128),
        ("dp_feta", 64),
        *(
            pytest.param(method, side, marks=pytest.mark.slow)
            for method, side in [
                ("feta_pro", 64), ("dp_feta", 128), ("dpdm", 64), ("dpdm", 128), ("dp_diffusion", 64),
                ("dp_diffusion", 128),
            ]
        ),
    ],
)  # fmt: skip
def test_from_images_to_release(method, side, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)
    data = ["--train_data_dir", str(tmp_path / "images"), "--resolution", str(side)]
    load(method, monkeypatch).main([*FLAGS, *OWN[method], *data, "--output_dir", str(tmp_path / "run")])
    pipeline = DPImagePipeline.from_pretrained(tmp_path / "run" / "release")
    (image,) = pipeline(class_labels=[1], num_inference_steps=1).images
    assert image.size == (side, side)
