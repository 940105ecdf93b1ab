# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `dp_accounting` computed once, it computes no more in this process: many tests plan the same run. And it
computes the losses of a Gaussian mechanism as an array, not one by one."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import rdp_privacy_accountant


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


one_by_one = GaussianPrivacyLoss.get_delta_for_epsilon


def at_once(loss: GaussianPrivacyLoss, epsilon: Any) -> Any:
    """`get_delta_for_epsilon` of many epsilons."""
    if np.ndim(epsilon) == 0 or loss.adjacency_type == AdjacencyType.REPLACE:
        return one_by_one(loss, epsilon)
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


def _fixed(value: Any) -> Any:
    return tuple(value.tolist()) if isinstance(value, np.ndarray) else value


def remember_accounting() -> None:
    """Whole compositions, too: distributions are never changed, so each is known by its identity."""
    GaussianPrivacyLoss.get_delta_for_epsilon = at_once
    remember(rdp_privacy_accountant, "_compute_rdp_poisson_subsampled_gaussian", 4096)
    for name in ("identity", "from_gaussian_mechanism"):
        remember(privacy_loss_distribution, name, 128)
    for name in ("compose", "self_compose", "get_epsilon_for_delta"):
        remember(privacy_loss_distribution.PrivacyLossDistribution, name, 256)
