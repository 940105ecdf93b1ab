# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Epsilon up to 1,000, where Renyi divergences at few orders say little: PLD alone is called PLD."""

import math
import warnings

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from diffusers_dp import verify
from diffusers_dp.accounting import epsilon as accounting
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.errors import BudgetExceeded, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.release.receipt import accounting_facts
from support.few import few


DELTA = 1e-5
SAMPLINGS = [(1.0, 1), (1 / 14, 2100), (1e-3, 1000)]


def merged(history):
    return accounting.merge(sampled(q, sigma).event(steps) for sigma, q, steps in history)


def gaussian(mu):
    """Epsilon of one Gaussian mechanism in closed form (Balle and Wang 2018, arXiv 1805.06530, Theorem 8)."""

    def excess(epsilon):
        low = norm.logcdf(-epsilon / mu - mu / 2)
        return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + low) - DELTA

    return brentq(excess, 0.1, 3000)


def by_hand(history):
    """Epsilon by dp_accounting's losses alone: the root of delta on one grid, whatever the scale of epsilon."""
    accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, 2e-3)
    for sigma, q, steps in history:
        query = GaussianDpEvent(sigma)
        accountant.compose(query if q == 1 else PoissonSampledDpEvent(q, query), steps)
    return brentq(lambda epsilon: accountant.get_delta(epsilon) - DELTA, 1, 3000)


def ledger_of(target, accountant="pld", **more):
    facts = {"target_delta": DELTA, "num_images": 5000, "accountant": accountant, **more}
    return PrivacyLedger(None, target_epsilon=target, **facts)


def test_a_rough_value_is_not_called_pld():
    """RDP at the quick orders says 1,306.9 here."""
    ledger = ledger_of(30.0)
    row = LedgerRow("dp_sgd", sampled(1e-3, 0.26), 1000)
    assert ledger.epsilon(extra=[row]) == pytest.approx(28.5356, abs=1e-3)
    assert ledger.epsilon("prv", extra=[row]) == pytest.approx(28.5356 + 0.012, abs=5e-3)
    ledger.reserve(row)


@pytest.mark.parametrize("mu", few([20.0, 33.16, 33.9, 34.3, 34.9, 40.5], 2, 4))
def test_one_gaussian_has_the_epsilon_of_the_closed_form(mu):
    """Also from 709 to 745, where dp_accounting's own search divides by zero, and above, where it is 1 too large."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = accounting.epsilon(merged([(1 / mu, 1.0, 1)]), DELTA)
    assert found == pytest.approx(gaussian(mu), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("before", [[], [(2.0, 1.0, 1), (0.8, 0.1, 5)]], ids=["alone", "after queries"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("target", [20.0, 60.0, 100.0, 300.0, 720.0, 1000.0])
def test_a_large_target_is_met_by_pld(target, sampling, before):
    composition = merged(before)
    spent = accounting.cost(composition, target, DELTA, "pld")
    sigma = accounting.calibrate(composition, sampled(sampling[0]), sampling[1], target, DELTA, "pld", spent, 1e-2)
    assert by_hand([*before, (sigma, *sampling)]) == pytest.approx(target, rel=5e-3)
    if sampling == SAMPLINGS[0] and not before:
        assert gaussian(1 / sigma) == pytest.approx(target, rel=2e-4)


@pytest.mark.parametrize(("target", "bands"), few([(100.0, 1), (1000.0, 1), (1000.0, 4)], 2))
def test_the_verifier_computes_the_same_large_epsilon(target, bands):
    """Queries and DP-SGD together, with groups or without."""
    ledger = ledger_of(target, public_facts={"class_names": None})
    ledger.reserve(LedgerRow("central_images", sampled(0.1, 0.5), 5))
    steps = -(-300 // bands)
    sigma = ledger.calibrate(sampled(0.05 * bands), steps)
    ledger.reserve(LedgerRow("dp_sgd", sampled(0.05 * bands, sigma), steps))
    facts, interval = accounting_facts(ledger), ledger.pld_interval()
    assert 0.999 * target < ledger.epsilon() <= target
    counted = verify.counted(facts["events"])
    assert verify.slack_of(facts, counted, interval) < 0.1
    assert verify.epsilon(counted, DELTA, interval=interval) == pytest.approx(ledger.epsilon(), abs=1e-9)


def test_where_pld_is_not_computed_epsilon_is_infinite_and_the_gate_is_shut():
    row = LedgerRow("dp_sgd", sampled(0.5, 0.3), 100_000)
    for accountant in ("pld", "prv"):
        ledger = ledger_of(1000.0, accountant)
        assert ledger.epsilon(extra=[row]) == math.inf
        with pytest.raises(BudgetExceeded):
            ledger.reserve(row)
    with pytest.raises(ValueError, match="no guarantee"):
        verify.slack_of({"delta": DELTA}, [verify.Counted(0.3, 0.5, 100_000)], 1e-3)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--target_epsilon 1001", "--target_epsilon is 1001.0; give"),
        ("--target_epsilon 1e9", "--target_epsilon"),
        ("--dataset_epsilon 1001 --dataset_id a --ledger_dir b", "--dataset_epsilon"),
        ("--target_epsilon 101 --accountant prv", "--accountant prv counts up to --target_epsilon 100"),
    ],
)
def test_a_target_that_nobody_counts_is_refused(flags, words):
    with pytest.raises(UsageError, match=words):
        load_config([*flags.split(), "--dry_run"], CONFIGS["dpdm"])
    load_config(["--target_epsilon", "1000", "--dry_run"], CONFIGS["dpdm"])
