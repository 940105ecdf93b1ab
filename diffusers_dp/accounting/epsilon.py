# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Epsilon of a composition of queries, and the noise that a target needs. Pure functions for the ledger.

Neighbouring data sets differ in one image that is zeroed out (dp_accounting's `REPLACE_SPECIAL`). A mechanism says by
its events what a query costs. Every number comes from `dp_accounting` (PLD and RDP) or Opacus (PRV, only
on request); this file merges, caches and searches. No torch here. Functions import `dp_accounting`, which loads scipy,
when they need it.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import UsageError
from ..mechanisms import Mechanism
from ..verify import MOST_BY_RDP, MOST_EPSILON, QUICK_ORDERS, epsilon_by_pld, quiet_absl, scale, widened


if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld import PLDAccountant

    from .ledger_row import LedgerRow


class Repeated(NamedTuple):
    """An event of dp_accounting without repetition, and how often it is repeated."""

    event: "DpEvent"
    times: int


Composition = tuple[Repeated, ...]  # see `merge`

# Opacus' orders, which the published numbers use, then larger ones; without these RDP is loose below epsilon 0.2.
RDP_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024)
PLD_INTERVAL, PLD_FINE_INTERVAL = 1e-4, 1e-5
MAX_NOISE_MULTIPLIER = 1e7
MOST_BY_PRV = 100  # the largest target of PRV, whose grid takes GiB beyond

FINE_BELOW = 0.1  # epsilon below which PLD's coarse interval shows


def compose(rows: "Iterable[LedgerRow]") -> Composition:
    """The composition of all rows of one release. Steps of one mechanism are added up first: where it has a stream,
    rows are pieces that follow each other."""
    steps: dict[Mechanism, int] = {}
    for row in rows:
        steps[row.mechanism] = steps.get(row.mechanism, 0) + row.steps
    return merge(mechanism.event(number) for mechanism, number in steps.items())


def merge(events: "Iterable[DpEvent | Repeated]") -> Composition:
    """Counts equal events and sorts them, so that the cost depends on neither order nor splitting."""
    counts: dict[DpEvent, int] = {}
    waiting = [(event, 1) if not isinstance(event, Repeated) else event for event in events]
    while waiting:
        event, number = waiting.pop()
        if hasattr(event, "events"):  # composed of several
            waiting += [(each, number) for each in event.events]
        elif hasattr(event, "count"):  # with itself
            waiting.append((event.event, number * event.count))
        else:
            counts[event] = counts.get(event, 0) + number
    return tuple(Repeated(event, counts[event]) for event in sorted(counts, key=_order))


def _order(event: "DpEvent") -> tuple[float, float, str]:
    gaussian = _as_gaussian(event)
    return (*gaussian, "") if gaussian else (math.inf, 0.0, repr(event))


def _as_gaussian(event: "DpEvent") -> tuple[float, float] | None:
    """Noise multiplier and sampling probability of a Gaussian mechanism, Poisson-sampled or not; `None` of others."""
    rate = getattr(event, "sampling_probability", 1.0)
    inner = event.event if hasattr(event, "sampling_probability") else event
    sigma = getattr(inner, "noise_multiplier", None)
    return None if sigma is None else (sigma, rate)


def gaussians(composition: Composition) -> list[tuple[float, float, int]] | None:
    """Noise multiplier, sampling probability and steps of each part; `None` where one is no sampled Gaussian."""
    found = [(*(_as_gaussian(event) or ()), count) for event, count in composition]
    return found if all(len(each) == 3 for each in found) else None


def largest_sample(num_images: int, sample_rate: float) -> int:
    """Returns a size that a Poisson sample almost never exceeds: `qN + 5 sqrt(qN (1 - q))`, rounded up, at most N."""
    expected = num_images * sample_rate
    return min(num_images, math.ceil(expected + 5 * math.sqrt(expected * (1 - sample_rate))))


@lru_cache(maxsize=4096)
def rdp(composition: Composition, orders: tuple[float, ...] = RDP_ORDERS) -> tuple[float, ...]:
    """Computes the composed Renyi divergence at each order; infinite where this fails."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_SPECIAL)
    with quiet_absl():
        for event, count in composition:
            accountant.compose(event, count)
    # The divergence of a real query is positive. Values at or below 0 are rounding (tiny q / sigma), and
    # compute_epsilon would turn them into epsilon 0.
    return tuple(float(value) if value > 0 or not composition else math.inf for value in accountant.rdp)


def rdp_epsilon(composition: Composition, delta: float, orders: tuple[float, ...] = RDP_ORDERS) -> tuple[float, int]:
    """Computes epsilon by RDP; returns it with the index of the order that gave it."""
    from dp_accounting.rdp import compute_epsilon

    values = rdp(composition, orders)
    epsilon, order = compute_epsilon(orders, values, delta)
    return float(epsilon), orders.index(order) if order in orders else int(np.argmin(values))


@lru_cache(maxsize=4096)
def epsilon(composition: Composition, delta: float, accountant: str = "pld", interval: float = PLD_INTERVAL) -> float:
    """Computes epsilon of a composition at `delta` by one of three accountants, each an upper bound.

    Args:
        composition (`Composition`): Composition from `merge`.
        delta (`float`): Delta, in (0, 1).
        accountant (`str`): `"pld"`, `"rdp"` or `"prv"` (the upper end of Opacus' estimate, about 0.01 above it).
        interval (`float`): PLD's value discretisation interval. It grows with epsilon once RDP's epsilon exceeds 60
            (at 1e-4) or 6 (at 1e-5).

    Returns:
        `float`: Epsilon by this accountant, never by another one; infinite where RDP's bound exceeds 5,900, or PLD's
            exceeds 110 and PRV is asked for.

    Raises:
        UsageError: Delta is too small for PRV (about 1e-14). PLD returns infinity there.
    """
    if not composition:
        return 0.0
    if accountant == "rdp":
        return rdp_epsilon(composition, delta)[0]
    rough = _rough(composition, delta)
    if not rough <= MOST_BY_RDP:
        return math.inf
    if accountant == "prv":
        if epsilon(composition, delta) > 1.1 * MOST_BY_PRV:  # a search needs values on both sides of its target
            return math.inf
        from opacus.accountants import PRVAccountant  # loads torch

        history = gaussians(composition)
        if history is None:
            raise UsageError("prv cannot count these queries: give --accountant pld or rdp.", field="accountant")
        prv = PRVAccountant()
        prv.history = history
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # log(0) where q = 1, and RDP orders that only size its grid
            try:
                return float(prv.get_epsilon(delta))
            except ValueError:  # delta is below its rounding error
                raise UsageError(
                    f"prv cannot count at delta {delta:g}: raise --target_delta, or give --accountant rdp.",
                    field="accountant",
                ) from None
    return epsilon_by_pld(composed(composition, widened(interval, rough)), delta)


def composed(composition: Composition, interval: float) -> "PLDAccountant":
    """Composes the privacy loss distributions of all queries, on a grid of this interval."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    pld = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, interval)
    for event, count in composition:
        pld.compose(event, count)
    return pld


def cost(
    composition: Composition, target_epsilon: float, delta: float, accountant: str, *, refine: bool = True
) -> float:
    """Computes epsilon as a ledger with this target states it: PLD at an interval of 1e-4, or 1e-5 for small values.

    The fine interval applies to targets below 0.2, to the whole ledger so that calibration sees no jump. It also
    applies to results below 0.1. That refinement is expensive with little noise and changes no decision: pass
    `refine=False` to only compare with the target. PRV is an estimate and PLD a bound, so PRV's value is raised to
    PLD's.
    """
    if accountant == "pld":
        interval = _refined(composition, target_epsilon, delta) if refine else interval_of(target_epsilon)
        return epsilon(composition, delta, "pld", interval)
    value = epsilon(composition, delta, accountant)
    return max(value, cost(composition, target_epsilon, delta, "pld", refine=refine)) if accountant == "prv" else value


def pld_interval(composition: Composition, target_epsilon: float, delta: float) -> float:
    """Returns the interval at which `cost` computed PLD's epsilon. Receipts state it for recomputation."""
    return widened(_refined(composition, target_epsilon, delta), _rough(composition, delta))


def interval_of(target_epsilon: float) -> float:
    """Returns PLD's interval for this target, before a small result refines it or a large one widens it."""
    return PLD_FINE_INTERVAL if target_epsilon < 0.2 else PLD_INTERVAL


def _refined(composition: Composition, target_epsilon: float, delta: float) -> float:
    interval = interval_of(target_epsilon)
    return PLD_FINE_INTERVAL if epsilon(composition, delta, "pld", interval) < FINE_BELOW else interval


def _rough(composition: Composition, delta: float) -> float:
    """Computes RDP's epsilon at few orders, to size PLD's grid: `verify` does the same."""
    rough = rdp_epsilon(composition, delta, QUICK_ORDERS)[0]
    history = gaussians(composition) if not rough <= MOST_EPSILON else None
    return rough if history is None else scale(history, delta)


def calibrate(
    before: Composition, mechanism: Mechanism, steps: int, target_epsilon: float, delta: float, accountant: str,
    spent: float, at_least: float,
) -> float:  # fmt: skip
    """Finds the smallest noise multiplier with which so many steps of a mechanism meet the target together with
    `before`, to 1e-4, from above.

    PLD usually needs two calls at full resolution. A grid ten times coarser is off by a slowly varying factor.
    Therefore solve on it, measure the factor at the solution, solve for the corrected target, and only then check at
    full resolution.

    Args:
        before (`Composition`): Reserved queries; they cost `spent`, which is below the target.
        at_least (`float`): Smallest noise multiplier to return.

    Raises:
        UsageError: No noise multiplier up to 1e7 meets the target, as with PLD at a delta of about 1e-15 or less.
    """

    def together(sigma: float) -> Composition:
        return merge([*before, mechanism.with_noise(sigma).event(steps)])

    def exact(sigma: float) -> float:
        return cost(together(sigma), target_epsilon, delta, accountant, refine=False)

    def coarse(sigma: float) -> float:
        return epsilon(together(sigma), delta, "pld", 10 * interval_of(target_epsilon))

    # A sum of many small Gaussian losses has mu = q sqrt(T) / sigma, and epsilon is near mu sqrt(2 ln(1/delta)).
    q, turns = mechanism.sampling_probability, mechanism.turns(steps)
    start = q * math.sqrt(-2 * turns * math.log(delta)) / (target_epsilon - spent)
    width = 4.0
    hopeless = (
        f"--accountant {accountant} finds no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} that meets epsilon "
        f"{target_epsilon:g} at delta {delta:g}: raise --target_delta, or the bound (--target_epsilon, "
        f"--dataset_epsilon){'.' if accountant == 'rdp' else ', or give --accountant rdp.'}"
    )
    if accountant == "pld" and coarse(MAX_NOISE_MULTIPLIER) < target_epsilon:
        start = smallest_noise(coarse, target_epsilon, start, hopeless, width=width, at_least=at_least, tolerance=2e-5)
        factor = coarse(start) / max(exact(start), 1e-12)
        if abs(factor - 1) > 4e-5:  # otherwise, at large epsilon, a second solution would be no better
            aim = target_epsilon * factor
            start = smallest_noise(coarse, aim, start, hopeless, width=1.001, at_least=at_least, tolerance=1e-5)
            start *= 1 + 2e-5
        # The query's cost falls at least as fast as its noise rises, so this close to the target the noise is the
        # smallest to 1e-4.
        if 0 <= target_epsilon - exact(start) <= 1e-4 * (target_epsilon - spent):
            return start
        width = 1 + 8e-5
    return smallest_noise(exact, target_epsilon, start, hopeless, width=width, at_least=at_least, tolerance=1e-4)


def gaussian_budget(target_epsilon: float, target_delta: float) -> tuple[float, float]:
    """Returns the optimal RDP order for a target, and the whole RDP budget at that order.

    Both belong to a plain Gaussian mechanism (RDP proportional to the order a) that just meets the target. The
    conversion is c(a) = log(1 - 1/a) - log(delta a) / (a - 1) (Canonne, Kamath and Steinke 2020, Proposition 12). The
    budget at a is epsilon - c(a); the optimal order maximises (epsilon - c(a)) / a.
    """
    budgets = {a: target_epsilon - math.log1p(-1 / a) + math.log(target_delta * a) / (a - 1) for a in RDP_ORDERS}
    order = max(budgets, key=lambda a: budgets[a] / a)
    return order, budgets[order]


def noise_for_share(
    share: float, mechanism: Mechanism, steps: int, target_epsilon: float, target_delta: float
) -> float:
    """Finds the noise multiplier with which so many steps of a mechanism use `share` of `gaussian_budget`.

    Raises:
        UsageError: RDP has no budget at the known orders because the target is too small.
    """
    order, budget = gaussian_budget(target_epsilon, target_delta)
    if not budget > 0:
        raise UsageError(
            f"{target_epsilon:g} is too small to divide into shares by RDP: give the noise multipliers of the queries "
            "instead.",
            field="target_epsilon",
        )

    def spent(sigma: float) -> float:
        return rdp(merge([mechanism.with_noise(sigma).event(steps)]), (order,))[0]

    q = mechanism.sampling_probability
    start = q * math.sqrt(order * mechanism.turns(steps) / (2 * share * budget))  # exact for q = 1
    hopeless = (
        f"No noise multiplier up to {MAX_NOISE_MULTIPLIER:g} makes a query as cheap as the share {share:g} of "
        f"--target_epsilon {target_epsilon:g} at delta {target_delta:g}: raise the share, --target_epsilon or "
        "--target_delta."
    )
    return smallest_noise(spent, share * budget, start, hopeless, width=1.01, at_least=1e-3, tolerance=1e-6)


def smallest_noise(
    cost: Callable[[float], float], target: float, start: float, hopeless: str, *, width: float, at_least: float,
    tolerance: float,
) -> float:  # fmt: skip
    """Finds the smallest noise multiplier with cost <= target, from above, to a relative `tolerance`.

    Brackets from `start` by a factor `width` that grows, then uses false position on a log-log scale. Each guess aims
    slightly towards the side that was not cut last, so that the bracket closes from both. If one side is cut
    repeatedly, the cost bends too much, and the bracket is halved.

    `dp_accounting.calibrate_dp_mechanism`, which uses scipy's `brentq`, has only an absolute tolerance and
    interpolates linearly. Here the cost may be infinite, and one evaluation of PLD takes seconds. Stored answers are
    found by their exact noise multiplier, so another search would lose existing ones.

    Args:
        cost (`Callable`): Cost of a noise multiplier, decreasing.
        target (`float`): Upper bound on the cost of the result.
        start (`float`): First guess.
        hopeless (`str`): Message of the error.
        width (`float`): Initial width of the bracket, as a factor.
        at_least (`float`): Smallest noise multiplier to return.
        tolerance (`float`): Relative tolerance.

    Raises:
        UsageError: No noise multiplier up to 1e7 meets the target.
    """
    high, growth = max(start, at_least), width
    low, cost_low, cost_high = high, target, cost(high)
    while not cost_high <= target:
        if high > MAX_NOISE_MULTIPLIER:
            raise UsageError(hopeless)
        low, cost_low, high = high, cost_high, high * growth
        cost_high, growth = cost(high), min(growth**2, 4.0)
    while low == high:
        if high <= at_least:
            return high
        lower = max(high / growth, at_least)
        cost_lower = cost(lower)
        if cost_lower <= target:
            low = high = lower
            cost_high, growth = cost_lower, min(growth**2, 4.0)
        else:
            low, cost_low = lower, cost_lower
    nudge, repeats = 1.0, 0
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if repeats < 2 and high < 1.5 * low and math.isfinite(cost_low) and cost_high > 0:
            part = math.log(cost_low / target) / math.log(cost_low / cost_high)
            edge = 1 + tolerance / 4
            middle = min(max(low * (high / low) ** part * (1 + nudge * 0.4 * tolerance), low * edge), high / edge)
        cost_middle = cost(middle)
        if cost_middle <= target:
            high, cost_high, cut = middle, cost_middle, -1.0
        else:
            low, cost_low, cut = middle, cost_middle, 1.0
        nudge, repeats = cut, repeats + 1 if cut == nudge else 0
    return high
