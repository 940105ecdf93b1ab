# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Construction of Diffusers' `UNet2DModel` from flags."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from diffusers import UNet2DModel
from torch import nn


def unet_config(
    image_shape: tuple[int, int, int],
    num_classes: int | None,
    *,
    channels_per_level: Sequence[int],
    layers_per_block: int,
    attention_sizes: Sequence[int],
    patch_size: int,
    attention_head_dim: int | None = None,
    resnet_time_scale_shift: str = "default",
) -> dict[str, Any]:
    """Computes the arguments of `UNet2DModel`.

    Groups of the normalisation have at least four channels, or there is one group; there are at most 32 groups.

    Args:
        image_shape (`tuple[int, int, int]`): (channels, height, width) of an image, before patching.
        num_classes (`int`, *optional*): Size of the label set; one more row embeds "no label". `None`: unconditional.
        channels_per_level (sequence of `int`): Channels from the finest to the coarsest feature maps.
        layers_per_block (`int`): Number of residual blocks per level.
        attention_sizes (sequence of `int`): Sides of the feature maps with self-attention.
        patch_size (`int`): Side length of the patches that are folded into channels.
        attention_head_dim (`int`, *optional*): Channels of an attention head, a divisor of each level's channels;
            `None`: their greatest common divisor.
        resnet_time_scale_shift (`str`): `default` adds the embeddings of time and class to the features of a residual
            block; `scale_shift` scales and shifts the normalised features by them (Dhariwal and Nichol 2021,
            Section 3.1).
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
        "attention_head_dim": attention_head_dim or common,
        "norm_num_groups": _groups(common),
        "attn_norm_num_groups": _groups(common),  # unset, `scale_shift` would have no normalisation there
        "resnet_time_scale_shift": resnet_time_scale_shift,
        "num_class_embeds": None if num_classes is None else num_classes + 1,  # the last row is the null label
    }


def _groups(common: int) -> int:
    """Returns the number of normalisation groups for channels with this greatest common divisor."""
    return max(n for n in range(1, 33) if common % n == 0 and (n == 1 or 4 * n <= common))


def fit_class_table(unet: UNet2DModel, num_classes: int | None) -> None:
    """Gives a model a class table of `num_classes + 1` rows, the last for "no label".

    A table of that size stays. A missing one is added with rows of zeros, which change nothing of what the model
    computes; one of another size, for other classes, is replaced by rows that each are the mean of its rows.

    Raises:
        ValueError: The model is conditioned on something else, or needs labels and there are none.
    """
    rows = None if num_classes is None else num_classes + 1
    if unet.config.class_embed_type is not None:
        raise ValueError(f"it is conditioned on '{unet.config.class_embed_type}', not on a class table")
    if unet.config.num_class_embeds == rows:
        return
    if rows is None:
        raise ValueError("it needs labels, and your images have none (--label_column names their column)")
    table = nn.Embedding(rows, unet.time_embedding.linear_2.out_features, device=unet.device)
    with torch.no_grad():
        table.weight.copy_(unet.class_embedding.weight.mean(0) if unet.class_embedding is not None else torch.zeros(1))
    unet.class_embedding = table
    unet.register_to_config(num_class_embeds=rows)
