# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""From the model's flags to Diffusers' `UNet2DModel`."""

import math
from typing import Any

import torch
from diffusers import UNet2DModel

from ..flags import TrainingConfig


def unet_config(config: TrainingConfig, image_shape: tuple[int, int, int], num_classes: int | None) -> dict[str, Any]:
    """The arguments of `UNet2DModel` that the flags describe.

    Groups of the normalisation have at least four channels (one group where that cannot be), and there are at most 32.

    Args:
        config (`TrainingConfig`): The configuration, validated.
        image_shape (`tuple[int, int, int]`): (channels, height, width) of an image, before patching.
        num_classes (`int`, *optional*): Size of the label set; one more row embeds "no label". `None`: unconditional.
    """
    channels, side, _ = image_shape
    levels = config.channels_per_level
    sizes = [side // config.patch_size // 2**level for level in range(len(levels))]
    attention = [size in config.attention_sizes for size in sizes]
    common = math.gcd(*levels)
    return {
        "sample_size": sizes[0],
        "in_channels": channels * config.patch_size**2,
        "out_channels": channels * config.patch_size**2,
        "block_out_channels": levels,
        "layers_per_block": config.layers_per_block,
        "down_block_types": ["AttnDownBlock2D" if a else "DownBlock2D" for a in attention],
        "up_block_types": ["AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attention)],
        "add_attention": any(attention),
        "attention_head_dim": common,
        "norm_num_groups": max(n for n in range(1, 33) if common % n == 0 and (n == 1 or 4 * n <= common)),
        "num_class_embeds": None if num_classes is None else num_classes + 1,  # the last row is the null label
    }


def count_parameters(config: TrainingConfig, image_shape: tuple[int, int, int], num_classes: int | None) -> int:
    """The number of trained parameters of that model, which is built without memory for them. See `unet_config`."""
    with torch.device("meta"):
        unet = UNet2DModel(**unet_config(config, image_shape, num_classes))
    return sum(parameter.numel() for parameter in unet.parameters())
