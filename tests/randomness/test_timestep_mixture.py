# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The mixture of diffusion times: what is drawn, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.randomness.timestep_mixture import TimestepMixture


PUBLISHED = [
    "0-200:0.05,200-800:0.9,800-1000:0.05",
    "0-30:.015,30-600:.785,600-1000:.2",
    "0-30:0.03, 30-800:0.77, 800-1000:0.2",
]


@pytest.mark.parametrize("text", PUBLISHED)
def test_each_interval_is_drawn_from_by_its_weight_and_uniformly_within(text):
    mixture = TimestepMixture.parse(text)
    times = mixture.times(np.random.default_rng(0).random(200_000)) * 1000
    counts, _ = np.histogram(times, mixture.bounds)
    assert counts.sum() == len(times)
    np.testing.assert_allclose(counts / len(times), mixture.weights, atol=0.004)
    for low, high in zip(mixture.bounds, mixture.bounds[1:]):
        inside = times[(times >= low) & (times < high)]
        assert inside.mean() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))
        assert inside.std() == pytest.approx((high - low) / 12**0.5, rel=0.05)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.floats(0, 1, exclude_max=True))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_times_are_below_one_and_ascend(parts, uniform):
    total = sum(parts)
    mixture = TimestepMixture(
        [0.0, *(1000 * sum(parts[: i + 1]) / total for i in range(len(parts)))], [1 / len(parts)] * len(parts)
    )
    time, later = mixture.times(np.array([uniform, np.nextafter(1, 0)]))
    assert 0 <= time <= later < 1


def test_one_interval_is_the_uniform_distribution():
    uniform = np.random.default_rng(0).random(100)
    np.testing.assert_allclose(TimestepMixture.parse("0-1000:1").times(uniform), uniform)


@pytest.mark.parametrize(
    "text",
    [
        "10-1000:1", "0-999:1", "0-1001:1", "0-200:.5,300-1000:.5", "0-300:.5,200-1000:.5", "0-0:.5,0-1000:.5",
        "500-1000:.5,0-500:.5",
    ],
)  # fmt: skip
def test_intervals_that_do_not_cover_all_of_time_are_refused(text):
    with pytest.raises(ValueError, match="does not cover 0 to 1000"):
        TimestepMixture.parse(text)


@pytest.mark.parametrize(
    "text", ["0-200:.15,200-600:.785,600-1000:.2", "0-500:0,500-1000:1", "0-500:-.5,500-1000:1.5", "0-1000:.99"]
)
def test_weights_that_are_no_probabilities_are_refused(text):
    with pytest.raises(ValueError, match="sum is|cover"):
        TimestepMixture.parse(text)


@pytest.mark.parametrize(
    "text", ["", "uniform", "0-1000", "0,200,1000", "0-1000:1,", "0-1.2.3:1", "a-b:c", "0-1000:nan", "0-1000:1e999"]
)
def test_what_is_no_mixture_is_refused(text):
    with pytest.raises(ValueError):
        TimestepMixture.parse(text)
