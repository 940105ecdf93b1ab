# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Rounded Gaussian noise has exactly its probabilities, where floating point cannot tell, too."""

import math

import numpy as np
import pytest
from flint import arb, ctx
from scipy import stats

from diffusers_dp.randomness import rounded_gaussian as module
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.randomness.rounded_gaussian import BITS, decided, rounded_gaussian


KEY = bytes(range(16))


def words(key=KEY):
    return PrivateGenerator(key).words


class Fixed:
    """A source that counts what it is asked for."""

    def __init__(self, *values):
        self.values, self.asked = list(values), 0

    def __call__(self, count):
        self.asked += count
        return np.array([self.values.pop(0) for _ in range(count)], dtype=np.uint64)


@pytest.mark.parametrize("std", [0.3, 1.0, 7.7])
def test_a_small_grid_has_the_probabilities_of_the_normal_distribution(std):
    drawn = rounded_gaussian(400_000, std, words())
    most = math.ceil(2.5 * std)
    edges = np.arange(-most, most + 1) + 0.5
    expected = np.diff(stats.norm.cdf([-np.inf, *edges, np.inf], scale=std)) * len(drawn)
    found = np.bincount(np.searchsorted(edges, drawn), minlength=len(expected))
    assert stats.chisquare(found, expected).pvalue > 1e-3
    assert (drawn == np.rint(drawn)).all()


def test_noise_of_a_step_is_normal_with_its_tails():
    std = 0.6 * 2**18
    drawn = rounded_gaussian(400_000, std, words()) / std
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    beyond = (np.abs(drawn) > 4).sum()
    assert stats.binomtest(int(beyond), len(drawn), 2 * stats.norm.sf(4)).pvalue > 1e-3


def quantile(uniform, precision=300):
    """The magnitude that belongs to the first bits of u, followed by a one, by bisection in interval arithmetic."""
    with ctx.workprec(precision):
        u, low, high = arb(2 * uniform + 1) / arb(1 << (BITS + 1)), arb(0), arb(40)
        for _ in range(200):
            middle = ((low + high) / 2).mid()
            low, high = (middle, high) if (middle / arb(2).sqrt()).erfc() / 2 > u else (low, middle)
        return low.mid()


@pytest.mark.parametrize("uniform", [1, 3, 2**20 + 7, 2**40 + 1, 2**49 + 12345, 2**52 + 99, 2**53 - 1])
@pytest.mark.parametrize("std", [1.5, 157_286.4, 0.83 * 2**28])
def test_a_number_is_decided_as_arbitrary_precision_decides_it(uniform, std):
    """The bits that follow are a one and zeros, so that u is known."""
    with ctx.workprec(300):
        exact = quantile(uniform) * arb(std) + arb(1) / 2
        assert decided(uniform, std, Fixed(1 << 63, *[0] * 9)) == int(exact.floor().unique_fmpz())


def test_what_floating_point_decides_is_what_arbitrary_precision_decides():
    """Each number of a small draw, whether it was near a half step or not."""
    std, count = 157_286.4, 2000
    source, again = words(), words()
    drawn = rounded_gaussian(count, std, source)
    first = again(count) >> np.uint64(11)
    exact = [decided(int(uniform), std, words(bytes(16))) for uniform in first]
    assert np.array_equal(np.abs(drawn), exact)


def test_where_the_bits_leave_it_open_more_are_drawn():
    """u and the probability of a half step agree in all bits of a word, and in the next 64."""
    std = 157_286.4
    with ctx.workprec(400):
        tail = (arb(2 * 1000 + 1) / 2 / arb(std) / arb(2).sqrt()).erfc() / 2
        digits = int((tail * arb(1 << (BITS + 64))).floor().unique_fmpz())
    uniform, more = digits >> 64, digits & (2**64 - 1)
    low, high = Fixed(more, 0), Fixed(more, 2**64 - 1)
    assert (decided(uniform, std, low), decided(uniform, std, high)) == (1001, 1000)
    assert low.asked == high.asked == 2


def test_every_number_near_a_half_step_is_decided(monkeypatch):
    """With a margin of a tenth of a step, a fifth of all numbers are."""
    asked = []

    def watched(uniform, std, words):
        asked.append(uniform)
        return decided(uniform, std, words)

    monkeypatch.setattr(module, "decided", watched)
    monkeypatch.setattr(module, "MARGIN", 0.1 / 100)
    rounded_gaussian(2000, 100.0, words())
    assert 0.2 < len(asked) / 2000 < 0.6


def test_the_margin_covers_what_floating_point_and_the_missing_bits_may_change():
    """Up to the tail: the last of u's bits, and a hundred times 2^-46 |z|."""
    z = np.linspace(0, module.TAIL, 1000)
    assert (2.0**-BITS / stats.norm.pdf(z) + 100 * 2.0**-46 * z <= module.MARGIN * (1 + z)).all()


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 2.0**37])
def test_a_deviation_that_the_margin_was_not_made_for_is_refused(std):
    with pytest.raises(ValueError, match="2\\^36"):
        rounded_gaussian(1, std, words())


@pytest.mark.slow  # a minute
@pytest.mark.parametrize("std", [0.6, 37.5, 0.6 * 2**18])
def test_a_hundred_million_numbers(std, monkeypatch):
    """Chi-square over a thousand equal parts or all whole numbers, tails, and every case that floating point left
    open, decided again in 300 bits."""
    cases = []

    def noted(uniform, deviation, words):
        asked = []

        def more(count):
            drawn = words(count)
            asked.extend(int(each) for each in drawn)
            return drawn

        cases.append((uniform, asked, decided(uniform, deviation, more)))
        return cases[-1][2]

    monkeypatch.setattr(module, "decided", noted)
    source = PrivateGenerator(exact=True).words
    edges = np.unique(np.floor(stats.norm.ppf(np.arange(1, 1000) / 1000) * std) + 0.5)
    found, beyond, parts, size = np.zeros(len(edges) + 1), 0, 10, 10**7
    for _ in range(parts):
        drawn = rounded_gaussian(size, std, source)
        found += np.bincount(np.searchsorted(edges, drawn), minlength=len(found))
        beyond += int((np.abs(drawn) > np.floor(4.5 * std) + 0.5).sum())
    expected = np.diff(stats.norm.cdf([-np.inf, *edges, np.inf], scale=std)) * parts * size
    tail = 2 * stats.norm.sf((np.floor(4.5 * std) + 0.5) / std)
    p_values = stats.chisquare(found, expected).pvalue, stats.binomtest(beyond, parts * size, tail).pvalue
    print(f"std {std:g}: chi-square p {p_values[0]:.3f}, tails p {p_values[1]:.3f}, {len(cases)} decided")
    assert min(p_values) > 1e-4 and cases
    with ctx.workprec(300):
        for uniform, asked, k in cases:
            numerator = uniform
            for word in asked:
                numerator = numerator << 64 | word
            ends = [arb(numerator + end) / arb(1 << (BITS + 64 * len(asked))) for end in (0, 1)]  # u lies between them
            tails = [(arb(2 * each + 1) / 2 / arb(std) / arb(2).sqrt()).erfc() / 2 for each in (k, k - 1)]
            assert ends[0] >= tails[0] and (k == 0 or ends[1] <= tails[1])
