# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The mixture of diffusion times: what is drawn, and what is refused."""

import numpy as np
import pytest

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
