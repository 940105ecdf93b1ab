# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Small teachers on images of noise."""

import torch
from torch import nn

from diffusers_dp.privacy.teachers import Teaching
from support.doors import CLASSES, SHAPE


INPUTS = 3


class Student(nn.Module):
    def inputs(self):
        return torch.linspace(-1, 1, INPUTS * 64).view(INPUTS, *SHAPE), torch.arange(INPUTS)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, len(CLASSES))

    def forward(self, images, labels):
        scores = self.layer(images.flatten(1))
        return (scores * (labels[:, None] == torch.arange(len(CLASSES)))).sum(1)


def loss(teacher, real, real_labels, inputs, labels):
    return teacher(inputs, labels).mean() - teacher(real, real_labels).mean()


def blame(teacher, inputs, labels):
    return torch.func.grad(lambda images: teacher(images, labels).sum())(inputs).flatten(1)


def votes(teacher, inputs, labels):
    scores = teacher(inputs, labels)
    return torch.stack([scores, -scores], 1)


def teaching(**changes):
    return Teaching(**{
        "new": Network, "loss": loss, "blame": blame, "steps": 2, "batch_size": 5, "learning_rate": 0.1, **changes,
    })  # fmt: skip
