# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""From the model's flags to a UNet."""

import pytest
from diffusers import UNet2DModel

from diffusers_dp.methods.config import load_config
from diffusers_dp.models import unet_config


@pytest.mark.parametrize("num_classes", [None, 3])
def test_patches_and_classes_have_their_sizes(num_classes):
    config = load_config(["--patch_size", "2", "--num_channels", "3"])
    unet = UNet2DModel(**unet_config((3, 8, 8), num_classes, **config.network))
    assert unet.config.sample_size == 4 and unet.config.in_channels == 12
    assert unet.config.num_class_embeds == (None if num_classes is None else 4)
