# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""From the model's flags to a UNet."""

import pytest
import torch
from diffusers import UNet2DModel

from diffusers_dp.methods.config import load_config
from diffusers_dp.models import unet_config


@pytest.mark.parametrize("channels", ["6,10", "14,28", "15", "24,40"])
def test_any_channel_counts_make_a_unet(channels):
    config = load_config(["--block_out_channels", channels, "--attention_resolutions", "8"])
    unet = UNet2DModel(**unet_config((1, 8, 8), 3, **config.network))
    sample = unet(torch.zeros(2, 1, 8, 8), torch.zeros(2), class_labels=torch.tensor([0, 3])).sample
    assert sample.shape == (2, 1, 8, 8)


@pytest.mark.parametrize("num_classes", [None, 3])
def test_patches_and_classes_have_their_sizes(num_classes):
    config = load_config(["--patch_size", "2", "--num_channels", "3"])
    unet = UNet2DModel(**unet_config((3, 8, 8), num_classes, **config.network))
    assert unet.config.sample_size == 4 and unet.config.in_channels == 12
    assert unet.config.num_class_embeds == (None if num_classes is None else 4)
