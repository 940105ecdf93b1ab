# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""An honest mechanism passes again and again: what the checks say of made-up runs, without a model."""

from dataclasses import replace

import numpy as np
import pytest

from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.audit.canaries import Watch
from diffusers_dp.audit.checks import SIGNIFICANCE, judge, noise_checks
from diffusers_dp.mechanisms import sampled


CANARIES, RECORDS, DELTA = 200, 400, 1e-5


def asked(mechanism, steps=60):
    return gradient_row(mechanism, max_grad_norm=2.0, normaliser=10.0, steps=steps)


def honest_run(rng, row=asked(sampled(0.1, 1.5)), epsilon=30.0, noise_scale=1.0):
    """Poisson samples, C for each canary in a sample, and noise, as the door would give them."""
    watch, taken = Watch(CANARIES), rng.random(CANARIES) < 0.5
    visible = np.flatnonzero(np.concatenate([taken, np.ones(RECORDS - CANARIES, dtype=bool)]))
    for _ in range(row.steps):
        sample = np.flatnonzero(rng.random(RECORDS) < row.sampling_probability)
        seen = np.intersect1d(sample, visible)
        std = noise_scale * row.noise_multiplier * 2.0
        watch.samples.append(seen)
        watch.batch_sizes.append(float(len(sample)))
        watch.canaries.append(2.0 * np.isin(np.arange(CANARIES), seen) + std * rng.normal(size=CANARIES))
        watch.queries.append(row.facts)
    return judge(watch, row, RECORDS, epsilon, DELTA, taken, visible, noise_scale)


def test_honest_runs_pass():
    """300 of 300; their p-values are spread as chance would have it."""
    rng = np.random.default_rng(0)
    outcomes = [honest_run(rng) for _ in range(300)]
    assert [outcome.failures for outcome in outcomes] == [[]] * 300
    for name in {check.name for check in outcomes[0].checks}:
        p_values = [check.p_value for outcome in outcomes for check in outcome.checks if check.name == name]
        if p_values[0] is not None and "largest" not in name and "p-value" not in name:
            assert 0.4 < np.mean(p_values) < 0.6, name
            assert sum(p < 0.01 for p in p_values) <= 12, name
    count = sum(check.p_value is not None for check in outcomes[0].checks)
    # The samplers of the broken runs, three queries, the noise at the door, the bound; four estimates.
    assert count <= 12 and (count + 6 + 24 + 2 + 1) * SIGNIFICANCE + 4 * 2e-4 < 1.35e-3


def test_the_formal_bound_rejects_by_its_p_value_and_not_at_95_percent():
    """Where the claim is small, chance alone puts the bound above it in one run of twenty."""
    rng = np.random.default_rng(3)
    outcomes = [honest_run(rng, asked(sampled(0.1, 1000.0)), epsilon=0.0) for _ in range(80)]
    assert any(outcome.formal_bound > outcome.claimed_epsilon for outcome in outcomes)
    assert all(outcome.formal_p_value > SIGNIFICANCE for outcome in outcomes)
    assert not any("formal bound above the claim" in outcome.failures for outcome in outcomes)
    assert "formal bound above the claim" in replace(outcomes[0], formal_p_value=SIGNIFICANCE / 2).failures


@pytest.mark.parametrize("noise_scale", [0.0, 0.5])
def test_broken_noise_is_always_rejected(noise_scale):
    rng = np.random.default_rng(1)
    for _ in range(50):
        assert any(
            "noise: standard deviation" in failure for failure in honest_run(rng, noise_scale=noise_scale).failures
        )


def test_nothing_that_is_no_number_passes():
    silent = np.full((5, 100), np.nan)
    assert not any(check.passed for check in noise_checks(silent, 1.0))


def test_steps_that_no_canary_takes_part_in_are_no_fault():
    """With 16 of 60,000 images a step, all canaries of a quick run are left out one time in ten."""
    row = asked(sampled(16 / 60_000, 1.5), 16)
    outcomes = [honest_run(np.random.default_rng(seed), row, noise_scale=0.0) for seed in range(40)]
    named = [{check.name for check in outcome.checks} for outcome in outcomes]
    smallest = "clipping: smallest contribution to a step, in C"
    assert any(smallest not in names for names in named) and any(smallest in names for names in named)
    for outcome in outcomes:
        assert not any("clipping" in failure for failure in outcome.failures)
