# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A public model as Diffusers saves it."""

import torch
from diffusers import (
    DDPMPipeline,
    DDPMScheduler,
    UNet2DModel,
)
from safetensors.torch import load_file, save_file

from diffusers_dp.runs.pretrained import WEIGHTS, load_pretrained
from support.models import unet_config


SHAPE = (3, 8, 8)
CARD = "---\nlicense: apache-2.0\n---\nA model.\n"


def make_unet(**changes):
    torch.manual_seed(0)
    return UNet2DModel(**{**unet_config(channels=3), **changes})


def save(folder, scheduler=None, **changes):
    """A pipeline as Diffusers' own training example saves it."""
    DDPMPipeline(make_unet(**changes), scheduler or DDPMScheduler()).save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    return str(folder)


def load(name, num_classes=None, **arguments):
    return load_pretrained(name, **{"image_shape": SHAPE, "num_classes": num_classes, **arguments})


def edit_weights(folder, edit):
    path = folder / "unet" / WEIGHTS
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
