# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""From the model's flags to Diffusers' `UNet2DModel`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from diffusers import UNet2DModel


def unet_config(
    image_shape: tuple[int, int, int],
    num_classes: int | None,
    *,
    channels_per_level: Sequence[int],
    layers_per_block: int,
    attention_sizes: Sequence[int],
    patch_size: int,
) -> dict[str, Any]:
    """The arguments of `UNet2DModel`.

    Groups of the normalisation have at least four channels (one group where that cannot be), and there are at most 32.

    Args:
        image_shape (`tuple[int, int, int]`): (channels, height, width) of an image, before patching.
        num_classes (`int`, *optional*): Size of the label set; one more row embeds "no label". `None`: unconditional.
        channels_per_level (sequence of `int`): From the finest feature maps to the coarsest.
        layers_per_block (`int`): Residual blocks per level.
        attention_sizes (sequence of `int`): Sides of the feature maps that get self-attention.
        patch_size (`int`): Pixels that are folded into channels, per side.
    """
    channels, side, _ = image_shape
    levels = tuple(channels_per_level)
    sizes = [side // patch_size // 2**level for level in range(len(levels))]
    attention = [size in attention_sizes for size in sizes]
    common = math.gcd(*levels)
    return {
        "sample_size": sizes[0],
        "in_channels": channels * patch_size**2,
        "out_channels": channels * patch_size**2,
        "block_out_channels": levels,
        "layers_per_block": layers_per_block,
        "down_block_types": ["AttnDownBlock2D" if a else "DownBlock2D" for a in attention],
        "up_block_types": ["AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attention)],
        "add_attention": any(attention),
        "attention_head_dim": common,
        "norm_num_groups": max(n for n in range(1, 33) if common % n == 0 and (n == 1 or 4 * n <= common)),
        "num_class_embeds": None if num_classes is None else num_classes + 1,  # the last row is the null label
    }


def count_parameters(image_shape: tuple[int, int, int], num_classes: int | None, **network: Any) -> int:
    """The number of trained parameters of that model, which is built without memory for them. See `unet_config`."""
    with torch.device("meta"):
        unet = UNet2DModel(**unet_config(image_shape, num_classes, **network))
    return sum(parameter.numel() for parameter in unet.parameters())
