# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""RequestFilter to a dozen images of noise, ledgers for them, and a gradient asked of one."""

import numpy as np
import torch
from torch import nn

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.private_generator import PrivateGenerator


KEY = bytes(range(16))
SHAPE = (1, 8, 8)
NUM_IMAGES = 12
CLASSES = ("a", "b", "c")


def make_ledger(num_images=NUM_IMAGES, target_epsilon=1e9, accountant="rdp"):
    return PrivacyLedger(
        None, target_epsilon=target_epsilon, target_delta=1e-5, num_images=num_images, accountant=accountant
    )


def make_door(
    missing=(), images=None, *, kinds=None, count=NUM_IMAGES, labels="round", class_names=CLASSES, num_images=None,
    ledger=None, **options,
):  # fmt: skip
    """Images of noise, if none are given; the first pixel is what `kinds` says."""
    if images is None:
        images = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
        num_images = num_images or NUM_IMAGES
    if kinds is not None:
        images[:, 0, 0, 0] = kinds
    readable = np.ones(len(images), dtype=bool)
    readable[list(missing)] = False
    return SensitiveImages(
        images, np.arange(len(images)) % 3 if isinstance(labels, str) else labels, readable,
        num_images=num_images or len(images), image_shape=images.shape[1:],
        ledger=ledger or make_ledger(num_images or len(images)), class_names=class_names,
        **options,
    )  # fmt: skip


def put(door, method, *arguments, ledger=None, generator=None, **options):
    """`noisy_sum` or `noisy_gradient`, once with another ledger or source of randomness than the door's own."""
    own = door._ledger, door._generator

    def take(ledger, generator):
        door._ledger, door._generator = ledger, generator
        if door._passage is not None:  # of the last step
            door._passage.generator = generator

    take(ledger or own[0], generator or own[1])
    try:
        return getattr(door, method)(*arguments, **options)
    finally:
        take(*own)


def two_layers():
    """Two parameters of 10,000 numbers each."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100, bias=False), nn.Linear(100, 100, bias=False))


def squares(model, rows, labels, generator):
    return model(rows).square().flatten(1).sum(1)


def gradient(door, model, row_loss=squares, **changes):
    arguments = {"max_grad_norm": 0.1, "mechanism": sampled(1.0, 2.0), "normaliser": 4.0}
    arguments |= {"noise_multiplicity": 1, "max_physical_batch_size": 5, "ledger": make_ledger(door.num_units)}
    return put(door, "noisy_gradient", model, row_loss, **{**arguments, **changes})


class Noiseless(PrivateGenerator):
    """Samples as ever, but every Gaussian draw is 0: the sum behind the noise."""

    def normal(self, shape, std, device="cpu"):
        return torch.zeros(tuple(shape), device=device)

    def rounded_normal(self, shape, std, device="cpu"):
        return torch.zeros(tuple(shape), dtype=torch.float64, device=device)


class Counting(PrivateGenerator):
    """Notes what is drawn."""

    def __init__(self):
        super().__init__(KEY)
        self.normals, self.uniforms = [], []

    def normal(self, shape, std, device="cpu"):
        self.normals.append((tuple(shape), round(std, 6)))
        return super().normal(shape, std, device)

    def uniform(self, size):
        self.uniforms.append(size)
        return super().uniform(size)
