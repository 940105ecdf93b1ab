# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tiny public autoencoders."""

import torch
from diffusers import AutoencoderKL


def tiny_vae(channels=1, dropout=0.0, seed=0):
    """8 pixels to 4, with weights of noise."""
    torch.manual_seed(seed)
    vae = AutoencoderKL(
        in_channels=channels, out_channels=channels, latent_channels=2, block_out_channels=(4, 8), norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, sample_size=8,
        scaling_factor=0.5, shift_factor=0.25,
    )  # fmt: skip
    for block in vae.encoder.down_blocks:
        block.resnets[0].dropout.p = dropout
    return vae
