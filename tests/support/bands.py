# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Steps with bands: their rows, their matrix, and doors that show who took part or what the noise is."""

import numpy as np
import torch
from torch import nn

from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.mechanisms import Banded
from diffusers_dp.mechanisms.band_coefficients import square_root_coefficients
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import put


def bands_of(count, seed=7, *, rate=0.05, sigma=2.0):
    c = tuple(float(value) for value in square_root_coefficients(count))
    return Banded(noise_multiplier=sigma, rate=rate, coefficients=c, group_key=f"{seed:032x}")


def banded_row(count=4, *, sigma=2.0, sample_rate=0.05, seed=7, clip_norm=1.0):
    mechanism = bands_of(count, seed, rate=sample_rate, sigma=sigma)
    return gradient_row(mechanism, max_grad_norm=clip_norm, normaliser=10.0)


def matrix(coefficients, lengths):
    """C of blocks that follow each other: block diagonal, each block banded, lower triangular and Toeplitz."""
    c = np.zeros((sum(lengths), sum(lengths)))
    start = 0
    for length in lengths:
        for k, value in enumerate(coefficients[:length]):
            rows = np.arange(start + k, start + length)
            c[rows, rows - k] = value
        start += length
    return c


class Noting(PrivateGenerator):
    """Notes what is drawn, step by step."""

    def __init__(self, key=None):
        super().__init__(key)
        self.drawn = []

    def normal(self, shape, std, device="cpu"):
        noise = super().normal(shape, std, device)
        self.drawn.append(noise.clone())
        return noise


def number_of(images):
    """Which record each image is of, by its first two pixels in [-1, 1]; a blank has number 0."""
    values = ((images[:, 0, 0, :2] + 1) * 127.5).round().long()
    return values[:, 0] + 256 * values[:, 1]


def numbered(count, side=4):
    """Images that tell their number, from 1 on."""
    images = np.zeros((count, 1, side, side), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(1, count + 1) % 256, np.arange(1, count + 1) // 256
    return images


def one_hot_loss(model, images, labels, generator):
    """Its gradient is 1 at the image's own number: the sum of a step says who took part."""
    return model(nn.functional.one_hot(number_of(images) % model.in_features, model.in_features).float()).squeeze(1)


def one_weight_each(count):
    return nn.Linear(count + 1, 1, bias=False)


def taken(door, ledger, steps, *, count, mechanism, **changes):
    """Who took part in each step, bool of shape `[steps, count]`."""
    arguments = {"max_grad_norm": 1.0, "normaliser": 1.0, "noise_multiplicity": 1}
    arguments |= {"max_physical_batch_size": 64, "ledger": ledger, "reserve_steps": steps, **changes}
    model = one_weight_each(count)
    sums = [put(door, "noisy_gradient", model, one_hot_loss, mechanism, **arguments)["weight"] for _ in range(steps)]
    return torch.stack(sums)[:, 0, 1:].numpy() > 0.01
