# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Random allocations of units to turns: their rows, and what they cost by other ways than the library's."""

import hashlib
import math

import numpy as np

from diffusers_dp.accounting.ledger_row import Allocation, gradient_row
from support.bands import bands_of


KEY = bytes(range(32))


def allocation_of(turns=6, participations=2, *, key=KEY, loss_step=0.4):
    return Allocation(turns, participations, hashlib.sha256(key).hexdigest(), loss_step=loss_step)


def turns_row(turns=6, participations=2, *, bands=4, sigma=2.0, key=KEY, loss_step=0.4):
    """One step; without bands with `bands=1`."""
    allocation = allocation_of(turns, participations, key=key, loss_step=loss_step)
    return gradient_row(
        max_grad_norm=1.0, noise_multiplier=sigma, sample_rate=allocation.rate / bands, normaliser=10.0,
        noise_multiplicity=1, bands=None if bands == 1 else bands_of(bands), allocation=allocation,
    )  # fmt: skip


def sampled_deltas(sigma, turns, participations, epsilon, draws=400_000, seed=0):
    """Estimates delta of exactly k of t turns at `epsilon` in both directions, each with its standard error.

    The likelihood ratio is the mean over all sets of k turns of the product of `exp((y_j - 1/2) / sigma^2)`: an
    elementary symmetric polynomial.
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, sigma, (draws, turns))
    with_unit = noise + (np.arange(turns) < participations)  # which turns these are makes no difference
    found = []
    for outputs, sign in ((with_unit, 1), (noise, -1)):
        sums = np.zeros((draws, participations + 1))
        sums[:, 0] = 1
        for ratio in np.exp((outputs - 0.5) / sigma**2).T:
            sums[:, 1:] += sums[:, :-1] * ratio[:, None]
        losses = sign * np.log(sums[:, -1] / math.comb(turns, participations))
        excess = np.maximum(0, -np.expm1(epsilon - losses))
        found.append((excess.mean(), excess.std() / draws**0.5))
    return found
