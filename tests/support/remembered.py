# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `dp_accounting` computed once, it computes no more in this process: many tests plan the same run."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
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


def _fixed(value: Any) -> Any:
    return tuple(value.tolist()) if isinstance(value, np.ndarray) else value


def remember_accounting() -> None:
    """Whole compositions, too: distributions are never changed, so each is known by its identity. Binomials of an
    order are those of any noise."""
    rdp_privacy_accountant._log_comb = functools.lru_cache(2**18)(rdp_privacy_accountant._log_comb)
    remember(rdp_privacy_accountant, "_compute_rdp_poisson_subsampled_gaussian", 4096)
    for name in ("identity", "from_gaussian_mechanism"):
        remember(privacy_loss_distribution, name, 128)
    for name in ("compose", "self_compose", "get_epsilon_for_delta"):
        remember(privacy_loss_distribution.PrivacyLossDistribution, name, 256)
