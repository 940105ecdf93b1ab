# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Command lines of tiny runs."""

from diffusers_dp.methods.config import CONFIGS
from diffusers_dp.methods.flags import DiffusionConfig


#: Methods that end with DP-SGD on a diffusion model, each with a training of its own: `pge_dpsgd` has DPDM's.
DIFFUSION_METHODS = [
    name for name, config in CONFIGS.items() if issubclass(config, DiffusionConfig) and name != "pge_dpsgd"
]

#: Of FETA-Pro, on whatever images.
TINY = (
    "--block_out_channels 8,16 --max_train_steps 2 --spatial_steps 2 --frequency_steps 2 --generator_steps 2 "
    "--expert num_auxiliary_images=20 --num_frequency_features 50 --num_inference_steps 2 --expert "
    "generator_channels=4 "
    "--skip_preflight"
).split()
#: In the folders that `runs.write_images` writes.
NUM_IMAGES = 30
FOLDER = [*TINY, "--train_batch_size", "8", "--class_names", "left,empty,right", "--resolution", "8"]
FOLDER += [
    "--num_channels",
    "1",
    "--num_train_images",
    str(NUM_IMAGES),
    "--accountant",
    "rdp",
    "--target_epsilon",
    "1",
]

#: Of any method, on images in folders.
TINY_RUN = (
    "--block_out_channels 8,16 --max_train_steps 2 --num_inference_steps 2 --skip_preflight --train_batch_size 8 "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1"
).split()

#: Narrower, with checkpoints on the way.
SHORT_RUN = (
    "--block_out_channels 4,8 --num_inference_steps 1 --skip_preflight --noise_multiplicity 1 --accountant rdp "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} "
    "--train_batch_size 8 --target_epsilon 1 --max_train_steps 4 --checkpointing_steps 2 --restart_slack 4"
).split()
SHORT_FETA_PRO = [
    *SHORT_RUN,
    *"--spatial_steps 1 --frequency_steps 1 --generator_steps 1 --expert num_auxiliary_images=6".split(),
    *"--num_frequency_features 10 --expert generator_channels=4,spatial_batch_size=6,frequency_batch_size=6".split(),
    *"--expert generator_batch_size=6 --num_central_images 2".split(),
]
RESUME = ["--resume_from_checkpoint", "latest"]
