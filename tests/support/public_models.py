# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A public model as Diffusers saves it."""

from pathlib import Path

import torch
from diffusers import (
    DDPMPipeline,
    DDPMScheduler,
    UNet2DModel,
)
from safetensors.torch import load_file, save_file

from diffusers_dp.data.images import PublicFacts
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


def load(name, num_classes=None, revision=None, shape=SHAPE, num_images=10):
    """For a run under no `--dataset_id`."""
    names = None if num_classes is None else tuple(map(str, range(num_classes)))
    nowhere = {"private": Path("none"), "ledger_path": Path("none"), "dataset_id": None, "unit_of_privacy": "image"}
    return load_pretrained(name, PublicFacts(num_images, shape, names), revision=revision, **nowhere)


def edit_weights(folder, edit):
    path = folder / "unet" / WEIGHTS
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
