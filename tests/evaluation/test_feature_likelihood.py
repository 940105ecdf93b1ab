# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""FLD against scipy's mixtures, autograd, and a program of its own."""

import math

import numpy as np
import pytest
import torch

from diffusers_dp.evaluation.feature_likelihood import (
    feature_likelihood_divergence,
)
from support.evaluating import gaussian


def test_equals_an_independent_program():
    """The whole of it, by autograd and torch.distributions, one batch."""
    train, test = gaussian(60) + 3, gaussian(40, seed=1) + 3
    synthetic = gaussian(30, seed=2, shift=3.3, scale=1.2)
    draws = np.random.default_rng(5)
    chosen, order = draws.permutation(30), draws.permutation(60)
    mean, deviation = test.mean(0), test.std(0, ddof=1)
    points, held_out, centres = (
        torch.from_numpy((x - mean) / deviation) for x in (train[order], test, synthetic[chosen])
    )

    def logs(x, mus, log_variances):
        normal = torch.distributions.Normal(mus, (log_variances / 2).exp()[:, None])
        return normal.log_prob(x[:, None]).sum(2) - math.log(len(mus))

    def fit(x, mus):
        squared = (x[:, None] - mus).square().sum(2)
        log_variances = ((squared.min(0).values + 1e-3) / 6).log().requires_grad_()
        base = torch.zeros((), requires_grad=True)
        adam = torch.optim.Adam([log_variances, base], lr=0.5)
        for _ in range(50):
            adam.zero_grad()
            normal = torch.distributions.Normal(0.9 * (x.mean(0) - x), (base / 2).exp())
            of_base = normal.log_prob(torch.zeros(6)).sum(1)[:, None]
            (-torch.cat([logs(x, mus, log_variances), of_base], 1).logsumexp(1).mean() / 6).backward()
            adam.step()
            log_variances.data.clamp_(-40, 20)
        return log_variances.detach()

    nll = -logs(points, centres, fit(points, centres)).logsumexp(1).mean() / 6
    half = points[:30], points[30:]
    baseline = -logs(held_out, half[0], fit(half[1], half[0])).logsumexp(1).mean() / 6
    found = feature_likelihood_divergence(train, test, synthetic, seed=5)
    assert found == pytest.approx(100 * float(nll - baseline), rel=1e-3)


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
    """`reference` by a program in float64 with exact distances (not in this repository), on the same images."""
    rng = np.random.default_rng(0)
    train, test, synthetic = (rng.integers(0, 256, (n, 64)).astype(np.float32) / 255 for n in (400, 360, 200))
    half = np.concatenate([train[:80], synthetic[:80]])
    reference = -371.0061
    assert feature_likelihood_divergence(train, test, half, seed=1) == pytest.approx(reference, abs=1e-3)
