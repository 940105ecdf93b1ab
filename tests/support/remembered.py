# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `dp_accounting` computed once, it computes no more in this process: many tests plan the same run. And it
computes losses and divergences of a Gaussian mechanism as arrays, not one by one."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import rdp_privacy_accountant
from dp_accounting.rdp.rdp_privacy_accountant import _MAX_STEPS_LOG_A_FRAC, _log_comb
from scipy.special import log_ndtr


def remember(module: Any, name: str, most: int) -> None:
    """Keeps the last answers of a function that has no side effects, and whose answers nobody changes."""
    function: Callable[..., Any] = getattr(module, name)

    @functools.lru_cache(most)
    def answer(arguments: tuple[Any, ...], options: tuple[tuple[str, Any], ...]) -> Any:
        return function(*arguments, **dict(options))

    @functools.wraps(function)
    def remembered(*arguments: Any, **options: Any) -> Any:
        return answer(tuple(map(_fixed, arguments)), tuple((key, _fixed(value)) for key, value in options.items()))

    setattr(module, name, remembered)


deltas_one_by_one = GaussianPrivacyLoss.get_delta_for_epsilon
divergences_one_by_one = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian


def deltas(loss: GaussianPrivacyLoss, epsilon: Any) -> Any:
    """`get_delta_for_epsilon` of many epsilons."""
    if np.ndim(epsilon) == 0 or loss.adjacency_type == AdjacencyType.REPLACE:
        return deltas_one_by_one(loss, epsilon)
    epsilon, q = np.asarray(epsilon, float), loss.sampling_prob
    least = np.log1p(-q) if q < 1 else -np.inf  # loss of a sampled mechanism
    if loss.adjacency_type == AdjacencyType.ADD:
        sign, inverse = -1, loss._inverse_privacy_loss_without_subsampling_add
        delta, between = np.zeros_like(epsilon), epsilon < -least
    else:
        sign, inverse = 1, loss._inverse_privacy_loss_without_subsampling_remove
        delta, between = -np.expm1(np.minimum(epsilon, least)), epsilon > least
    epsilon = epsilon[between]
    whole = sign * epsilon
    if q < 1:
        above = whole - np.log(q)
        whole = above + np.log1p(-np.exp(np.log(1 / q - 1) - above))
    x = inverse(sign * whole)
    delta[between] = loss.mu_upper_cdf(x) - np.exp(epsilon + loss.mu_lower_log_cdf(x))
    return np.clip(delta, 0, 1)


def divergences(q: float, noise_multiplier: float, orders: Any) -> Any:
    """`_compute_rdp_poisson_subsampled_gaussian`: the same terms, a row for each order."""
    sigma, orders = noise_multiplier, np.asarray(orders, float)
    if not (0 < q < 1 and sigma > 0 and np.isfinite(orders).all()):
        return divergences_one_by_one(q, sigma, orders)
    log_a, log_q, log_p = np.full(len(orders), np.inf), np.log(q), np.log1p(-q)
    z = sigma**2 * np.log(1 / q - 1) + 0.5

    def terms(alpha, i, j):  # of the binomial series, in logarithms, without the tails of a fractional order
        return _log_comb(alpha, i) + j * log_q + (alpha - j) * log_p + (j * j - j) / (2 * sigma**2)

    for place in np.flatnonzero(orders % 1 == 0):
        i = np.arange(orders[place] + 1)
        log_a[place] = np.logaddexp.reduce(terms(orders[place], i, i))
    places, begin, end = np.flatnonzero(orders % 1), 0, 32
    sums, last = (np.full((2, len(places), 1), -np.inf) for _ in range(2))
    while len(places) and begin < _MAX_STEPS_LOG_A_FRAC:
        i, alpha = np.arange(begin, min(end, _MAX_STEPS_LOG_A_FRAC)), orders[places, None]
        below = terms(alpha, i, i) + log_ndtr((z - i) / sigma)
        both = np.stack([below, terms(alpha, i, alpha - i) + log_ndtr((alpha - i - z) / sigma)])
        sums = np.logaddexp.accumulate(np.concatenate([sums, both], 2), 2)[:, :, 1:]
        total, falls = np.logaddexp(*sums), (np.diff(both, axis=2, prepend=last) < 0).all(0)
        ends = falls & (both.max(0) < total - 30)
        done = ends.any(1)
        log_a[places[done]] = total[done, ends[done].argmax(1)]
        places, sums, last = places[~done], sums[:, ~done, -1:], both[:, ~done, -1:]
        begin, end = end, 4 * end
    return log_a / (orders - 1)


def _fixed(value: Any) -> Any:
    return tuple(value.tolist()) if isinstance(value, np.ndarray) else value


def remember_accounting() -> None:
    """Whole compositions, too: distributions are never changed, so each is known by its identity."""
    GaussianPrivacyLoss.get_delta_for_epsilon = deltas
    rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian = divergences
    remember(rdp_privacy_accountant, "_compute_rdp_poisson_subsampled_gaussian", 4096)
    for name in ("identity", "from_gaussian_mechanism"):
        remember(privacy_loss_distribution, name, 128)
    for name in ("compose", "self_compose", "get_epsilon_for_delta"):
        remember(privacy_loss_distribution.PrivacyLossDistribution, name, 256)
