# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of 128 pixels, which no recipe has: all stages of FETA-Pro, and a release."""

import numpy as np
from PIL import Image

from diffusers_dp.pipelines import DPImagePipeline
from support.runs import load


NUM_IMAGES, SIDE = 6, 128
FLAGS = (
    f"--class_names a,b --num_train_images {NUM_IMAGES} --train_batch_size 2 --max_train_steps 1 --noise_multiplicity "
    "1 --accountant rdp --target_epsilon 1 --block_out_channels 4,4,4 --num_inference_steps 1 --skip_preflight "
    "--spatial_steps 1 --num_central_images 1 --frequency_steps 1 --generator_steps 1 --num_frequency_features 10 "
    "--expert num_auxiliary_images=2,generator_channels=4,spatial_batch_size=2,frequency_batch_size=2 "
    "--expert generator_batch_size=2"
).split()


def test_from_images_to_release(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(path)
    data = ["--train_data_dir", str(tmp_path / "images"), "--resolution", str(SIDE)]
    load("feta_pro", monkeypatch).main([*FLAGS, *data, "--output_dir", str(tmp_path / "run")])
    pipeline = DPImagePipeline.from_pretrained(tmp_path / "run" / "release")
    (image,) = pipeline(class_labels=[1], num_inference_steps=1).images
    assert image.size == (SIDE, SIDE)
