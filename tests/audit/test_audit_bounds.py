# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Lower bounds on epsilon: against brute force, simulation, and the ceilings that follow from the number of
guesses."""

import math

import numpy as np
import pytest
from scipy import stats

from diffusers_dp.audit.bounds import (
    clopper_pearson,
    gaussian_epsilon,
    gaussian_estimate,
    guess_coins,
    one_run_epsilon,
    one_run_p_value,
)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (10, 10), (3, 10), (120, 1000)])
def test_clopper_pearson_is_the_exact_binomial_test(hits, trials):
    low, high = clopper_pearson(hits, trials, 0.95)
    assert low == 0 if hits == 0 else stats.binom.sf(hits - 1, trials, low) == pytest.approx(0.05)
    assert high == 1 if hits == trials else stats.binom.cdf(hits, trials, high) == pytest.approx(0.05)


def brute_force_p_value(epsilon, m, r, v, delta):
    success = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [math.comb(r, k) * success**k * (1 - success) ** (r - k) for k in range(r + 1)]
    slack = max((sum(pmf[k] for k in range(v - i, v)) / i for i in range(1, v + 1)), default=0)
    return min(1, sum(pmf[v:]) + 2 * m * delta * slack)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize(("m", "r", "v"), [(20, 12, 12), (20, 20, 13), (9, 9, 0), (30, 8, 3)])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_one_run_p_value_against_its_formula(epsilon, m, r, v, delta):
    assert one_run_p_value(epsilon, m, r, v, delta) == pytest.approx(brute_force_p_value(epsilon, m, r, v, delta))


@pytest.mark.parametrize(("m", "ceiling"), [(100, 3.5), (1000, 5.8), (5000, 7.4)])
def test_the_ceiling_of_perfect_guesses(m, ceiling):
    found = one_run_epsilon(m, m, m, 0.0)
    limit = 0.05 ** (1 / m)
    assert found == pytest.approx(math.log(limit / (1 - limit)), abs=1e-3) and found == pytest.approx(
        ceiling, abs=0.05
    )
    assert one_run_epsilon(m, m, m, 1e-5) <= found


def simulate(mu, m, rng):
    taken = rng.random(m) < 0.5
    return rng.normal(size=m) + mu * taken, taken


def test_bounds_of_a_gaussian_mechanism_hold():
    """Of 200 simulated honest audits at epsilon 2 none exceeds it; with half the noise all estimates do."""
    rng = np.random.default_rng(0)
    mu, m = 0.5015, 2000  # epsilon 2 at delta 1e-5
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(2, abs=0.01)
    formal, honest, halved = [], [], []
    for _ in range(200):
        scores, taken = simulate(mu, m, rng)
        formal.append(one_run_epsilon(m, *guess_coins(scores, taken), 1e-5))
        honest.append(gaussian_estimate(scores[taken], scores[~taken], mu / 2, 1e-5, 0.9999))
        scores, taken = simulate(2 * mu, m, rng)
        halved.append(gaussian_estimate(scores[taken], scores[~taken], mu, 1e-5, 0.9999))
    assert max(formal) < 2 and 0.3 < np.median(formal) < 0.8
    assert max(honest) < 2 and 0.3 < np.median(honest)
    assert np.median(halved) > 2.5


def test_no_noise_at_all():
    """Nothing overlaps: 5.35 from the third of 2,000 canaries that is guessed, and the estimate is far above."""
    rng = np.random.default_rng(0)
    taken = rng.random(2000) < 0.5
    scores = taken * 25.0
    assert guess_coins(scores, taken) == (666, 666)
    assert one_run_epsilon(2000, 666, 666, 1e-5) == pytest.approx(5.35, abs=0.01)
    estimate = gaussian_estimate(scores[taken], scores[~taken], 12.5, 1e-5, 0.95)
    # No error in n trials: the upper limit p of its rate solves (1 - p)^n = 0.05.
    mu = sum(stats.norm.ppf(0.05 ** (1 / n)) for n in (taken.sum(), (~taken).sum()))
    first, second = stats.norm.cdf(-estimate / mu + mu / 2), stats.norm.logcdf(-estimate / mu - mu / 2)
    assert first - np.exp(estimate + second) == pytest.approx(1e-5, rel=1e-6) and estimate > 34
