# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The most that an attacker can gain from a release: bounds from the privacy loss distribution of all its queries.

An attacker decides for each unit whether it was used. Let alpha be the share of unused units that are accused. For
every real epsilon, the share of used units that are found is at most `e^epsilon alpha + delta(epsilon)` (Kairouz et
al. 2015, arXiv 1311.0776, Theorem 2.1). The smallest of these bounds is the trade-off curve (Dong, Roth and Su 2022,
arXiv 1905.02383, Section 2.3). Negative epsilons count: they give the smallest bound where noise is weak.
`delta(epsilon)` is the larger one of both orders of the neighbours. Nothing here loads torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..mechanisms import sampled
from ..verify import counted, counted_together, quiet_absl, slack_of
from .epsilon import Composition, composed, merge


#: Shares of unused units that are accused, at which a release is judged.
FALSE_POSITIVE_RATES = (0.001, 0.01)
#: Probabilities that a guess reconstructs a unit without the release.
PRIORS = (1e-6, 1e-3)
#: `delta(epsilon)` is at least `1 - e^epsilon`, so a smaller epsilon lowers no bound by more than e^-40.
LEAST_EPSILON = -40.0


@dataclass(frozen=True)
class AttackBounds:
    """Upper bounds on attacks on one release, or on several together, each a probability.

    Args:
        true_positive_rates (mapping): Share of the used units that are found, by false-positive rate.
        advantage (`float`): Largest difference of true-positive and false-positive rate; 0 is a blind guess.
        reconstructions (mapping): Probability that a reconstruction succeeds, by its probability without the release
            (Hayes, Mahloujifar and Balle 2023, arXiv 2307.03928).
    """

    true_positive_rates: Mapping[float, float]
    advantage: float
    reconstructions: Mapping[float, float]


def attack_bounds_of(receipt: dict[str, Any], *, all_releases: bool = False) -> AttackBounds:
    """Recomputes the bounds from the events of a receipt that `verify` has found consistent.

    Args:
        receipt (`dict`): Receipt. What was reserved counts, executed or not.
        all_releases (`bool`): Whether the releases of the data set before this one count as well.

    Raises:
        ValueError: PLD would take too long.
    """
    events = counted_together(receipt) if all_releases else counted(receipt["events"])
    grid = receipt["dataset"] if all_releases else receipt["claimed_epsilon"]["pld"]
    with quiet_absl():
        slack_of(receipt, events, grid["value_discretization_interval"])  # refuses what would take too long
    composition = merge(sampled(rate, sigma).event(turns) for sigma, rate, turns in events)
    return attack_bounds(composition, grid["value_discretization_interval"])


@lru_cache(maxsize=256)
def attack_bounds(composition: Composition, interval: float) -> AttackBounds:
    """Computes the bounds of a composition.

    Args:
        composition (`Composition`): Composition from `epsilon.merge`.
        interval (`float`): PLD's value discretisation interval. The bounds hold at any; at 1e-4 they exceed those of
            one Gaussian by less than 1e-9.
    """
    delta = composed(composition, interval).get_delta  # of the worse order of the neighbours
    found = {alpha: largest_success(delta, alpha) for alpha in {*FALSE_POSITIVE_RATES, *PRIORS}}
    return AttackBounds(
        {rate: found[rate] for rate in FALSE_POSITIVE_RATES},
        float(delta(0.0)),
        {prior: found[prior] for prior in PRIORS},
    )


def largest_success(delta: Callable[[float], float], alpha: float) -> float:
    """Bounds an attack's success where it succeeds with probability `alpha` without the unit: the minimum over epsilon
    of `e^epsilon alpha + delta(epsilon)`.

    Args:
        delta (`Callable`): Delta by epsilon, which may be negative.
        alpha (`float`): Probability in (0, 1).

    Returns:
        `float`: Probability from `alpha` to 1. Each epsilon gives a bound, so it holds however well the search ends.
    """
    from scipy.optimize import minimize_scalar

    def bound(epsilon: float) -> float:
        return math.exp(epsilon) * alpha + float(delta(epsilon))

    # The bound is convex in e^epsilon, so it has one valley; above -log(alpha) it exceeds 1.
    found = minimize_scalar(
        bound, bounds=(LEAST_EPSILON, -math.log(alpha)), method="bounded", options={"xatol": 1e-5, "maxiter": 200}
    )
    return max(alpha, min(1.0, float(found.fun), bound(0.0)))
