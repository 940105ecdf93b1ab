# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Errors of correlated noise, against formulas, simulation and published numbers, and coefficients that are best."""

import math

import numpy as np
import pytest
import torch
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.mechanisms import sampled
from diffusers_dp.mechanisms.band_coefficients import (
    Workload,
    best_coefficients,
    noise_of_a_step,
    root_mean_square_error,
    square_root_coefficients,
)
from diffusers_dp.methods.dp_sgd_flags import LR_SCHEDULERS
from support.bands import bands_of, matrix


REAL = Workload(120, "cosine", 10, 0.97)


def root(bands):
    return tuple(float(value) for value in square_root_coefficients(bands))


@pytest.mark.parametrize("steps", [1, 7, 600, 3000])
def test_independent_noise_has_the_error_of_its_formula(steps):
    assert root_mean_square_error((1.0,), Workload(steps)) == pytest.approx(math.sqrt((steps + 1) / 2), rel=1e-3)


def test_the_error_is_that_of_the_matrix():
    """Of a workload with a learning rate's course and a moving average, formed as matrices."""
    rates, decays = REAL.learning_rates(), REAL.decays()
    sums = np.tril(np.ones((120, 120))) * rates
    averages = np.zeros((120, 120))
    for step in range(120):
        averages[step] = decays[step] * averages[step - 1] if step else 0
        averages[step, step] += 1 - decays[step]
    for coefficients in ((1.0,), root(4), best_coefficients(8, REAL)):
        factors = np.linalg.inv(matrix(coefficients, [120]))
        squares = np.square(sums @ factors).sum() + np.square(averages @ sums @ factors).sum()
        assert root_mean_square_error(coefficients, REAL) == pytest.approx(math.sqrt(squares / 240), rel=1e-9)


@pytest.mark.parametrize("name", LR_SCHEDULERS)
def test_the_learning_rate_and_the_average_are_those_of_training(name):
    warm_up = 0 if name == "constant" else 5
    workload, parameter = Workload(30, name, warm_up, 0.8), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warm_up, num_training_steps=30)
    ema = EMAModel([parameter], decay=0.8)
    for rate, decay in zip(workload.learning_rates(), workload.decays(), strict=True):
        assert scheduler.get_last_lr()[0] == pytest.approx(rate, abs=1e-9)
        optimizer.step()
        scheduler.step()
        ema.step([parameter])
        assert ema.cur_decay_value == pytest.approx(decay, abs=1e-9)


@pytest.mark.parametrize("workload", [Workload(600), REAL, Workload(5, ema_decay=0.9)], ids=str)
@pytest.mark.parametrize("bands", [1, 2, 4, 16])
def test_what_is_sought_is_no_worse_than_the_square_root(bands, workload):
    if bands > workload.steps:
        return
    coefficients = best_coefficients(bands, workload)
    assert len(coefficients) == bands and coefficients[0] > 0
    assert sum(value**2 for value in coefficients) == pytest.approx(1, abs=1e-12)
    error = root_mean_square_error(coefficients, workload)
    assert error <= root_mean_square_error(root(bands), workload)
    if 1 < bands < workload.steps / 5:
        assert error < 0.97 * root_mean_square_error(root(bands), workload)
        assert error < 0.75 * root_mean_square_error((1.0,), workload)


@pytest.mark.parametrize(("bands", "error"), [(4, 8.935313), (8, 6.606197), (16, 5.062836)])
def test_the_best_is_that_of_jax_privacy(bands, error):
    """Its `toeplitz.optimize_banded_toeplitz(600, bands)`, version 2.0.0, of prefix sums, scaled to norm 1."""
    workload = Workload(600)
    assert root_mean_square_error(best_coefficients(bands, workload), workload) == pytest.approx(error, rel=1e-5)


def test_a_step_has_more_noise_than_its_part_of_the_sum():
    for bands in (2, 8):
        inverse = np.linalg.inv(matrix(root(bands), [300]))
        assert noise_of_a_step(root(bands)) == pytest.approx(np.linalg.norm(inverse[-1]), rel=1e-6)
    assert noise_of_a_step((1.0,)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "batch", "bands", "sigma", "error"),
    [(10.0, 512, 1, 0.52, 17.6), (10.0, 512, 16, 0.83, 9.1), (1.0, 256, 8, 1.60, 46.0)],
)
def test_published_numbers(epsilon, batch, bands, sigma, error):
    """`docs/guarantee.md`: 60,000 images, 600 steps, prefix sums, coefficients of the square root; a mean gradient,
    times 1,000."""
    ledger = PrivacyLedger(
        None, target_epsilon=epsilon, target_delta=1 / (60_000 * math.log(60_000)), num_images=60_000
    )
    found = ledger.calibrate(sampled(batch / 60_000) if bands == 1 else bands_of(bands, rate=batch / 60_000), 600)
    assert found == pytest.approx(sigma, abs=0.006)
    assert 1000 * found * root_mean_square_error(root(bands), Workload(600)) / batch == pytest.approx(error, rel=0.01)
