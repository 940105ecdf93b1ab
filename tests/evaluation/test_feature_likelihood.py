# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""FLD against scipy's mixtures and a program of its own."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from diffusers_dp.evaluation import feature_likelihood
from diffusers_dp.evaluation.feature_likelihood import feature_likelihood_divergence, fit_log_variances
from support.evaluating import gaussian


def fitted_by_hand(points, centres, per_step=10**9):
    """The authors' rule in float64, with Adam and gradients written out: log variances, and mean losses of epochs."""
    dimension, count = points.shape[1], len(centres)
    squared = ((points[:, None] - centres) ** 2).sum(2)
    to_base = 0.81 * ((points - points.mean(0)) ** 2).sum(1, keepdims=True)
    state = np.append(np.log((squared.min(0) + 1e-3) / dimension), 0.0)  # the last is the base's
    momentum, second, epochs, step = np.zeros(count + 1), np.zeros(count + 1), [], 0
    weights = np.append(np.full(count, -math.log(count)), 0.0)
    for epoch in range(50):
        losses = []
        for start in range(0, len(points), per_step):
            d = np.concatenate([squared, to_base], axis=1)[start : start + per_step]
            logs = weights - d / 2 / np.exp(state) - dimension / 2 * (state + math.log(2 * math.pi))
            total = scipy.special.logsumexp(logs, axis=1, keepdims=True)
            losses.append(-total.mean() / dimension)
            share = np.exp(logs - total)
            gradient = -(share * (d / 2 / np.exp(state) - dimension / 2)).mean(0) / dimension
            step += 1
            momentum = 0.9 * momentum + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            state = state - 0.5 * momentum / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
            state[:-1] = np.clip(state[:-1], -40, 40)
        epochs.append(sum(losses) / len(losses))
        if epoch > 5 and max(abs(epochs[-1] - each) for each in epochs[-5:]) < 5e-4:
            break
    return state[:-1], epochs


def by_hand(train, test, synthetic, seed):
    """All of FLD by `fitted_by_hand`: the value, and the number of epochs of its two fits."""
    draws = np.random.default_rng(seed)
    chosen, order = draws.permutation(len(synthetic)), draws.permutation(len(train))
    mean, deviation = test.mean(0, dtype=float), test.std(0, ddof=1, dtype=float)
    points, held_out, centres = ((x - mean) / deviation for x in (train[order], test, synthetic[chosen]))

    def nll(x, centres, log_variances):
        logs = [
            scipy.stats.multivariate_normal(each, math.exp(log)).logpdf(x)
            for each, log in zip(centres, log_variances, strict=True)
        ]
        return -(scipy.special.logsumexp(logs, axis=0) - math.log(len(centres))).mean() / x.shape[1]

    variances, epochs = fitted_by_hand(points, centres)
    half = min(len(centres), len(points) // 2)
    base_variances, base_epochs = fitted_by_hand(points[half:], points[:half])
    value = 100 * (nll(points, centres, variances) - nll(held_out, points[:half], base_variances))
    return value, len(epochs), len(base_epochs)


@pytest.mark.parametrize(
    "count, dimension, shift, epochs",
    [(60, 6, 3.3, [16, 26]), (400, 6, 3.05, [23, 19]), (200, 6, 6, [28, 20]), (12, 2, 3, [47, 50])],
)
def test_the_value_is_that_of_the_authors_rule(count, dimension, shift, epochs):
    train, test = gaussian(count, dimension) + 3, gaussian(count // 2, dimension, seed=1) + 3
    synthetic = gaussian(count // 2, dimension, seed=2, shift=shift, scale=1.2 if dimension == 6 else 1)
    expected, *of_fits = by_hand(train, test, synthetic, seed=5)
    assert of_fits == epochs
    assert feature_likelihood_divergence(train, test, synthetic, seed=5) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "losses, ends",
    [
        ([0.0] * 6, False), ([0.0] * 7, True), ([9.0] * 2 + [0.0] * 5, True), ([9.0] * 3 + [0.0] * 4, False),
        ([0.0] * 6 + [6e-4], False), ([0.0] * 4 + [-4e-4, 4e-4, 0.0], True),
    ],
)  # fmt: skip
def test_a_fit_ends_where_five_epochs_agree_with_the_last(losses, ends):
    assert feature_likelihood._still(losses) == ends


def test_the_rule_takes_the_mean_loss_of_the_steps_of_an_epoch(monkeypatch):
    points, centres = gaussian(100), gaussian(50, seed=1, scale=1.2)
    monkeypatch.setattr(feature_likelihood, "POINTS_PER_STEP", 30)
    monkeypatch.setattr(feature_likelihood, "ROWS_AT_A_TIME", 15)
    expected, epochs = fitted_by_hand(points.astype(float), centres.astype(float), per_step=30)
    assert 7 < len(epochs) < 50
    found = fit_log_variances(torch.from_numpy(points), torch.from_numpy(centres))
    np.testing.assert_allclose(found, expected, atol=2e-2)


@pytest.mark.parametrize("exponent, expected", [(13, 26), (25, 40)])
def test_variances_end_at_e_to_the_40(exponent, expected):
    """A centre e^13 away keeps the variance that it starts from."""
    points, centres = gaussian(100), gaussian(50, seed=1)
    centres[0] = math.exp(exponent)
    found = fit_log_variances(torch.from_numpy(points), torch.from_numpy(centres))
    by_hand = fitted_by_hand(points.astype(float), centres.astype(float))[0]
    assert found[0] == pytest.approx(by_hand[0], abs=1e-3) and found[0] == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("value", [11 / 255, 0.1])  # whose float32 and float64 deviations need not be 0
def test_a_feature_that_is_constant_on_the_test_images_is_only_centred(value):
    train, test, synthetic = (gaussian(count, seed=count) for count in (100, 360, 50))
    test[:, 0], at_zero = np.float32(value), test.copy()
    at_zero[:, 0] = 0
    shifted = train.copy(), synthetic.copy()
    for each in shifted:
        each[:, 0] -= np.float32(value)
    expected = feature_likelihood_divergence(shifted[0], at_zero, shifted[1], seed=0)
    assert feature_likelihood_divergence(train, test, synthetic, seed=0) == pytest.approx(expected, abs=1e-2)


def test_copies_are_at_distance_0_and_cost_as_much_as_in_float64():
    rng = np.random.default_rng(0)
    train, test, synthetic = (rng.integers(0, 256, (n, 64)).astype(np.float32) / 255 for n in (400, 360, 200))
    half = np.concatenate([train[:80], synthetic[:80]])
    expected = by_hand(train, test, half, seed=1)[0]
    assert expected == pytest.approx(-371.0233, abs=1e-4)
    assert feature_likelihood_divergence(train, test, half, seed=1) == pytest.approx(expected, abs=1e-3)
