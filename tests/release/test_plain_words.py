# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Words that tell the truth: an epsilon never looks smaller, and a bound never larger than it is."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from diffusers_dp.release.plain_words import (
    best_guess,
    short_number,
    strength,
)


@pytest.mark.parametrize("value", [1.0, 0.9999, 1.6789e-6, 9.571723e-05, 9.994, 9.996, 123.4, 5.0, 0.3])
def test_a_short_number_is_near_and_never_below(value):
    assert value * (1 - 1e-9) <= float(short_number(value)) <= value * 1.011


@pytest.mark.parametrize(
    ("epsilon", "delta", "number", "word"),
    [
        (0.1, 1.001e-4, 9000, "moderate"),  # large
        (0.1, 0.0051, 50, "moderate"),  # the default of 50
        (0.1, 0.02, 50, "weak"), (0.1, 0.5, 50, "weak"), (5, 0.5, 50, "weak"),  # 1/N and more
        (0.1, 1e-4, 10_000, "weak"), (0.1, 5e-5, 60_000, "weak"),  # and where that is little
        (0.1, math.nextafter(1e-4, 0), 10_000, "strong"),
        (9.9, 1e-4, 1000, "moderate"), (9.99, 0.02, 40, "weak"),  # the best guess is beyond epsilon 10's
        (20, 1e-6, 1000, "weak"),
        (0.1, math.nan, 50, "weak"), (math.nan, 1e-6, 50, "weak"),
    ],
)  # fmt: skip
def test_delta_makes_the_words_weaker(epsilon, delta, number, word):
    assert strength(epsilon, delta, number).word == word


def test_no_word_is_better_for_a_larger_epsilon_or_delta():
    order = ["strong", "moderate", "weak"]
    for number in (1, 3, 50, 1437, 60_000):
        found = np.array(
            [
                [order.index(strength(epsilon, delta, number).word) for epsilon in np.geomspace(0.01, 100, 41)]
                for delta in [0.0, *np.geomspace(1e-9, 1, 60)]
            ]
        )
        assert (np.diff(found, axis=0) >= 0).all() and (np.diff(found, axis=1) >= 0).all()


def test_the_best_guess_bounds_the_best_test_there_is():
    """Of a Gaussian mechanism, whose best test is known: half a distance in standard deviations."""
    assert (
        best_guess(0, 0) == 0.5
        and best_guess(1, 0) == pytest.approx(math.e / (1 + math.e))
        and best_guess(1e6, 0) <= 1
    )
    for distance in (0.1, 0.5, 1.0, 2.0):
        right = norm.cdf(distance / 2)
        for epsilon in np.linspace(0.05, 6, 30):
            delta = norm.cdf(distance / 2 - epsilon / distance) - math.exp(epsilon) * norm.cdf(
                -distance / 2 - epsilon / distance
            )
            assert best_guess(epsilon, delta) >= right - 1e-12
