# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Counterexamples to published epsilons, and counts that hold: the registry's sentences are computed here.

No private image is read, and all seeds are fixed.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import binom, norm, wishart

from diffusers_dp.methods.registry import METHODS


DELTA = 1e-5  # of the publications


def _bisect(below: Callable[[float], bool], high: float) -> float:
    """The number between 0 and `high` at which `below` ends."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Delta of a mu-GDP mechanism (Dong, Roth & Su 2022, Corollary 2.13)."""
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2)))


def _affordable(epsilon: float, multipliers: Sequence[float]) -> int:
    """How often Gaussian answers with these noise multipliers may be given together."""
    most = _bisect(lambda mu: gaussian_delta(epsilon, mu) <= DELTA, 100)
    return math.floor(most**2 / sum(each**-2 for each in multipliers))


def pge() -> str:
    """Computes one step of score matching (PGE, Equation 8) with one image and without it, for each vector that
    randomised response may choose."""
    rng = np.random.default_rng(0)
    images, weights, projections = rng.normal(size=(20, 4)), rng.normal(size=(4, 4)), rng.normal(size=(10, 4))

    def step(kept: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The weights of a linear score after a step; an image that is left out is zero."""
        outer = np.outer(v, v)
        return weights - 0.1 * (outer + outer @ weights @ kept.T @ kept / len(images))

    without = images * (np.arange(20) > 0)[:, None]
    apart = min(float(np.abs(step(images, v) - step(without, w)).max()) for v in projections for w in projections)
    return (
        "Computed: with one image among 20, a step ends in one of 10 states; without it, in one of 10 others, at "
        f"least {apart:.2g} away. Whoever sees the weights knows which."
    )


def dpgen() -> str:
    """Computes how likely an answer is with an image and without it, where randomised response chooses among the
    sensitive images: one and its neighbours in the set."""
    epsilon, choices = 1.0, 5
    kept = math.exp(epsilon) / (math.exp(epsilon) + choices - 1)  # the answer is the image itself
    near = (1 - kept) / (choices - 1)  # and else one of its neighbours in the set, to which b belongs or not
    return (
        f"Computed at a claimed epsilon of {epsilon:g}: the answer 'image b' has probability {near:.2f} where b is in "
        "the set, and 0 where it is not."
    )


def gs_wgan() -> str:
    """Computes epsilon where one image moves B vectors. Each moves by two clip norms, which the published noise
    multiplier refers to."""
    sigma, batch, critics, steps = 1.07, 32, 1000, 20_000

    def epsilon(sigma: float, steps: int, accountant: Callable[..., PrivacyAccountant]) -> float:
        composed = accountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
        composed.compose(PoissonSampledDpEvent(1 / critics, GaussianDpEvent(sigma)), steps)
        return float(composed.get_epsilon(DELTA))

    joint = epsilon(sigma / math.sqrt(batch), steps, partial(PLDAccountant, value_discretization_interval=1e-3))
    by_image, by_step = (epsilon(sigma, number, RdpAccountant) for number in (steps * batch, steps))
    # Where each step tells which critic it took: as many plain steps as it took an image's critic, a binomial number.
    picks = range(1, 80)
    chances = binom.pmf(picks, steps, 1 / critics)
    mus = [math.sqrt(batch * number) / sigma for number in picks]

    def revealed(epsilon: float) -> float:
        return sum(chance * gaussian_delta(epsilon, mu) for chance, mu in zip(chances, mus, strict=True))

    known = _bisect(lambda epsilon: revealed(epsilon) > DELTA, 1000)
    return (
        f"Computed with the published noise multiplier {sigma}, {critics:,} critics, {steps:,} steps, B = {batch} and "
        f"delta 1e-5: epsilon {joint:.0f} by PLD for the vectors of a step together, and {known:.0f} where each step "
        f"tells which critic it took. The count of each image by itself says {by_image:.2f}, the count of steps "
        f"{by_step:.2f} (RDP)."
    )


def g_pate() -> str:
    """Computes how many answers the published noise pays for, and epsilon by votes for two neighbouring counts."""
    paid = [
        _affordable(epsilon, [threshold, sigma / math.sqrt(2)])
        for epsilon, threshold, sigma in ((1.0, 3000.0, 1000.0), (10.0, 600.0, 100.0))
    ]
    one, other = (_epsilon_by_votes(apart, sigma=100.0, answers=1000) for apart in (800, 798))
    return (
        f"Computed: by the bound that holds, the published noise pays for {paid[0]:,} answered dimensions "
        f"at epsilon 1, and for {paid[1]:,} at 10, where it is smaller. "
        f"Epsilon of 1,000 answers by votes of 1,400 and 600 is {one:.4f}, "
        f"and {other:.4f} if one image moves a vote: the published number depends on the images, without noise."
    )


def _epsilon_by_votes(apart: int, sigma: float, answers: int) -> float:
    """Computes epsilon of noisy argmaxes of two counts, by the smaller bound at each order (Papernot et al. 2018,
    Theorem 6 and Propositions 7 and 10)."""
    q = float(norm.sf(apart / (math.sqrt(2) * sigma)))  # noise changes the answer
    mu2 = sigma * math.sqrt(-math.log(q))
    mu1 = mu2 + 1
    e1, e2 = mu1 / sigma**2, mu2 / sigma**2
    log_b = e1 - math.log(q) / (mu1 - 1)
    log_a = math.log1p(-q) - math.log1p(-math.exp((math.log(q) + e2) * (mu2 - 1) / mu2))
    applies = math.log(q) <= (mu2 - 1) * e2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1))

    def rdp(order: int) -> float:
        if not applies or order > mu1:
            return order / sigma**2
        ways = np.logaddexp(math.log1p(-q) + (order - 1) * log_a, math.log(q) + (order - 1) * log_b)
        return min(order / sigma**2, float(ways) / (order - 1))

    return min(answers * rdp(order) - math.log(DELTA) / (order - 1) for order in range(2, 200))


def datalens() -> str:
    """Computes the sensitivity of a sum of signs, and how many generated images the published noise pays for."""
    changed = [float(np.linalg.norm(np.ones(k) - -np.ones(k))) for k in (200, 300)]  # one teacher says the opposite
    paid = [
        _affordable(epsilon, [sigma / apart])
        for epsilon, sigma, apart in zip((1.0, 10.0), (5000.0, 800.0), changed, strict=True)
    ]
    return (
        f"Computed: one private image changes the sum of signs of 200 entries by up to {changed[0]:.1f}. So the "
        f"published noise pays for {paid[0]:,} generated images at epsilon 1. At epsilon 10, with 300 entries and "
        f"less noise, it pays for {paid[1]:,}."
    )


def dp_kernel() -> str:
    """Computes the slope of the published form of the loss, a squared distance plus a random number."""
    rng = np.random.default_rng(0)
    images, draws = rng.normal(0.5, 1, 1000), rng.normal(size=1000)
    frequencies, noise = rng.normal(size=20), float(rng.normal())

    def loss(shift: float, multiplier: float) -> float:
        apart = np.cos(np.outer(draws + shift, frequencies)).mean(0) - np.cos(np.outer(images, frequencies)).mean(0)
        return float(apart @ apart) + multiplier * noise

    slopes = [(loss(1e-3, each) - loss(-1e-3, each)) / 2e-3 for each in (0.0, 1.0, 100.0)]
    said = " and ".join([", ".join(f"{slope:.6f}" for slope in slopes[:-1]), f"{slopes[-1]:.6f}"])
    return (
        f"Computed for a distance plus noise: with multipliers of 0, 1 and 100 its slope is {said}. A generator that "
        "follows the slope gets no noise."
    )


def p3gm(epsilon: float = 1.0) -> str:
    """Computes how often a covariance with Wishart noise cannot come out with one image more (noise of Jiang, Xie &
    Zhang 2016: d + 1 degrees of freedom, scale 3/(2 N epsilon)).

    Args:
        epsilon (`float`): Claimed epsilon of the covariance.
    """
    d, tries = 5, 20_000
    image = np.eye(d)[0]  # of norm 1, times N
    draws = wishart(d + 1, np.eye(d) * 1.5 / epsilon, seed=0).rvs(tries)
    impossible = np.linalg.eigvalsh(draws - np.outer(image, image)).min(1) < 0
    return (
        f"Computed: at a claimed epsilon of {epsilon:g}, {100 * impossible.mean():.0f} % of the noisy covariances "
        "cannot come out with one image more, so delta is at least that."
    )


COMPUTED = {
    "pge": pge, "dpgen": dpgen, "gs_wgan_published": gs_wgan, "g_pate_published": g_pate,
    "datalens_published": datalens, "dp_kernel_published": dp_kernel, "p3gm": p3gm,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.computed])
def test_what_the_registry_says_is_computed(name):
    assert COMPUTED[name]() == METHODS[name].computed
