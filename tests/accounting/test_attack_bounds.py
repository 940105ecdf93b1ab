# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Bounds on attacks: those of mechanisms whose best attack is known, and the lies of a curve that forgets a part."""

import json
import math
from dataclasses import replace

import pytest
from scipy import optimize
from scipy.stats import norm

from diffusers_dp.accounting.attack_bounds import (
    FALSE_POSITIVE_RATES,
    PRIORS,
    attack_bounds,
    attack_bounds_of,
    largest_success,
)
from diffusers_dp.accounting.epsilon import composed, merge
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.mechanisms import sampled
from diffusers_dp.verify import counted
from support.bands import banded_row
from support.ledgers import row
from support.releases import RECEIPT, make_release


INTERVAL = 1e-3  # ten times coarser than a receipt's, which is precise enough where noise is weak
FINE = 1e-4
RATES = (*FALSE_POSITIVE_RATES, *PRIORS, 0.1, 0.5, 0.9)


def gaussian(alpha, mu):
    return norm.cdf(norm.ppf(alpha) + mu)


def merged(queries):
    return merge(sampled(q, sigma).event(steps) for sigma, q, steps in queries)


def curve(*queries, interval=INTERVAL):
    return composed(merged(queries), interval).get_delta


@pytest.mark.parametrize("mu", [0.01, 0.242, 1.0, 1.87, 4.0, 7.0, 9.0])
def test_one_gaussian_has_its_closed_form(mu):
    """Above mu 6.2 the minimum at 0.1 % lies at a negative epsilon."""
    interval, most = (FINE, 1e-9) if mu < 2 else (INTERVAL, 1e-6)
    found = attack_bounds(merged([(1 / mu, 1, 1)]), interval)
    for alpha, bound in {**found.true_positive_rates, **found.reconstructions}.items():
        assert -1e-12 <= bound - gaussian(alpha, mu) < most
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=1e-6)
    assert set(found.true_positive_rates) == {0.001, 0.01} and set(found.reconstructions) == {1e-6, 1e-3}


@pytest.mark.parametrize("alpha", RATES)
def test_a_sampled_gaussian_has_the_larger_of_both_orders(alpha):
    """One step at rate q. Accusing: (1 - q) alpha + q Phi(Phi^-1(alpha) + 1 / sigma). Absolving: the inverse of its
    reflection."""
    q, sigma = 0.25, 0.5
    delta = curve((sigma, q, 1), interval=FINE)

    def accusing(rate):
        return (1 - q) * rate + q * norm.cdf(norm.ppf(rate) + 1 / sigma)

    absolving = 1 - optimize.brentq(lambda rate: accusing(rate) - (1 - alpha), 0, 1 - 1e-12, xtol=1e-15)
    found, larger = largest_success(delta, alpha), max(accusing(alpha), absolving)
    if alpha == 0.1 or alpha == 0.5:  # the bound holds for a coin that chooses between the orders
        assert larger - 1e-9 <= found <= larger + 0.3
    else:
        assert found == pytest.approx(larger, abs=1e-6)
    assert (accusing(alpha) > absolving) == (alpha < 0.5)


def test_a_sampled_attack_is_bounded_by_the_worse_order():
    """The other order alone would promise a fifth of what an attacker reaches."""
    queries = merged([(0.5, 0.01, 20)])
    distribution = composed(queries, INTERVAL)._pld
    better = largest_success(distribution._pmf_add.get_delta_for_epsilon, 0.001)
    worse = largest_success(distribution._pmf_remove.get_delta_for_epsilon, 0.001)
    found = attack_bounds(queries, INTERVAL).true_positive_rates[0.001]
    assert better < 0.2 * worse and found == pytest.approx(worse, abs=1e-9)


def test_no_bound_grows_with_noise_and_none_falls_below_a_guess():
    before = None
    for sigma in (0.1, 0.3, 1, 3, 10, 100):
        found = attack_bounds(merged([(sigma, 0.1, 10)]), INTERVAL)
        values = [*found.true_positive_rates.values(), found.advantage, *found.reconstructions.values()]
        assert before is None or all(here <= there + 1e-12 for here, there in zip(values, before, strict=True))
        assert all(bound >= alpha for alpha, bound in found.true_positive_rates.items()) and max(values) <= 1
        before = values


def test_a_receipt_is_recomputed_from_all_its_events(tmp_path):
    """The claimed epsilon lies on the same curve, so each bound is at most its straight line."""
    receipt = json.loads((make_release(tmp_path) / RECEIPT).read_text())
    found, claim = attack_bounds_of(receipt), receipt["claimed_epsilon"]["pld"]["epsilon"]
    for alpha, bound in {**found.true_positive_rates, **found.reconstructions}.items():
        assert alpha < bound <= math.exp(claim) * alpha + receipt["delta"] + 1e-9
    less = {**receipt, "events": receipt["events"][:-1]}
    assert attack_bounds_of(less).advantage < found.advantage


def test_groups_that_take_turns_and_earlier_releases_count(banded_receipt):
    one, both = attack_bounds_of(banded_receipt), attack_bounds_of(banded_receipt, all_releases=True)
    assert one.advantage < both.advantage
    steps = sum(event.steps for event in counted(banded_receipt["events"]))
    assert steps == 4  # of 13 in which 4 groups take turns
    plain = [{**event, "mechanism": "poisson_gaussian"} for event in banded_receipt["events"]]
    assert attack_bounds_of({**banded_receipt, "events": plain}).advantage > one.advantage


@pytest.fixture
def banded_receipt():
    facts = {"target_epsilon": 50.0, "target_delta": 1e-5, "num_images": 1000}
    ledger, other = PrivacyLedger(None, **facts), PrivacyLedger(None, **facts)
    ledger.reserve(replace(banded_row(4, sigma=1.0, sample_rate=0.05), steps=13))
    other.reserve(row(2.0))
    (event,), prior = ledger.rows, {"events": other.rows}
    grid = {"value_discretization_interval": FINE}
    return {
        "delta": 1e-5, "events": [event], "prior_releases": [prior], "dataset": grid,
        "claimed_epsilon": {"pld": grid},
    }  # fmt: skip
