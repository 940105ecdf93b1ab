# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The accounting against published numbers; R1 to R13 are the regression numbers of the project's notes."""

import math

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.accounting import epsilon as accounting
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled


N = 55000
FETA_DELTA = 1.6657508770018431e-6  # 1 / (N ln N)
OPACUS_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
QUICK = settings(max_examples=8, deadline=None, derandomize=True)

# (noise multiplier, sampling probability, steps) as published.
FETA_PRO_1 = [(20, 6000 / N, 5), (26.6, 1, 1), (14.84375, 1 / 14, 2100)]
FETA_PRO_10 = [(5, 6000 / N, 5), (7.4, 1, 1), (1.99951171875, 1 / 14, 2100)]
DP_FETA = [(5, 0.1, 5), (13.2, 1 / 15, 2250)]


def merged(history):
    return accounting.merge(sampled(q, sigma).event(steps) for sigma, q, steps in history)


def cost(history, *, target=1e3, delta=1e-5, accountant="pld", refine=True):
    return accounting.cost(merged(history), target, delta, accountant, refine=refine)


def calibrate(q, steps, *, before=(), target=1.0, delta=1e-5, accountant="pld", at_least=1e-2):
    composition = merged(before)
    spent = accounting.cost(composition, target, delta, accountant)
    return accounting.calibrate(composition, sampled(q), steps, target, delta, accountant, spent, at_least)


# Published epsilons.


@pytest.mark.parametrize(
    ("history", "delta", "rdp", "rdp_tolerance", "pld", "pld_tolerance"),
    [
        pytest.param(FETA_PRO_1, FETA_DELTA, 0.99535, 2e-4, 0.9203, 1e-3, id="R1"),
        pytest.param(FETA_PRO_10, FETA_DELTA, 9.9974, 2e-3, 9.3443, 2e-3, id="R2"),
        pytest.param(FETA_PRO_1[2:], FETA_DELTA, 0.978941, 1e-5, 0.9049, 1e-3, id="R3"),
        pytest.param(DP_FETA, 1e-5, 0.9906, 2e-4, 0.9058, 1e-3, id="R4"),
        pytest.param([(2.852, 4096 / 50000, 4000)], 1e-5, 9.992, 5e-3, 9.291, 3e-3, id="R7"),
        pytest.param([(2.852, 4096 / 60000, 4000)], 1e-5, 8.035, 5e-3, 7.457, 3e-3, id="R7-N=60000"),
    ],
)
def test_published_epsilons(history, delta, rdp, rdp_tolerance, pld, pld_tolerance):
    assert cost(history, delta=delta, accountant="rdp") == pytest.approx(rdp, abs=rdp_tolerance)
    assert cost(history, delta=delta) == pytest.approx(pld, abs=pld_tolerance)


@pytest.mark.parametrize(
    ("query", "epsilon"),
    [
        ((3, 0.05, 1000), 2.527574),
        ((1.5, 0.05, 100), 1.953853),
        ((3, 0.2, 100), 3.381221),
        ((2, 0.001, 100), 0.029105),
        ((1.5, 0.001, 1000), 0.099821),
        ((0.8, 0.001, 1000), 0.477771),
    ],
)
def test_values_of_microsoft_s_prv_accountant(query, epsilon):  # R9; they are upper ends, 0.01 above the estimate
    assert cost([query], delta=1e-6, accountant="prv") == pytest.approx(epsilon, abs=1e-5)
    assert cost([query], delta=1e-6) == pytest.approx(epsilon - 0.01, abs=5e-4)


def test_order_and_splitting_do_not_matter():  # R11
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for sigma, q, steps in FETA_PRO_1:
        query = dp.GaussianDpEvent(sigma)
        accountant.compose(query if q == 1 else dp.PoissonSampledDpEvent(q, query), steps)
    a, b, (sigma, q, steps) = FETA_PRO_1
    for history in (FETA_PRO_1, [(sigma, q, 100), b, a, (sigma, q, steps - 101), (sigma, q, 1)]):
        assert cost(history, delta=FETA_DELTA) == pytest.approx(accountant.get_epsilon(FETA_DELTA), abs=1e-6)


@QUICK
@given(
    sigma=st.floats(2, 10),
    q=st.floats(0.05, 0.3),
    steps=st.integers(50, 1000),
    log_delta=st.floats(-7, -4),
    accountant=st.sampled_from(["pld", "rdp"]),
)
def test_epsilon_is_monotone(sigma, q, steps, log_delta, accountant):  # R12
    def epsilon(sigma=sigma, q=q, steps=steps, log_delta=log_delta):
        # A high target throughout, so that no point is computed on a finer grid than its neighbour because of it.
        return cost([(sigma, q, steps)], delta=10**log_delta, accountant=accountant)

    at = epsilon()
    if at < 0.15:  # below 0.1 the grid is refined: a step down, which is what R13 is about
        return
    assert epsilon(sigma=1.1 * sigma) < at < epsilon(q=1.1 * q)
    assert at < epsilon(steps=2 * steps) and at < epsilon(log_delta=log_delta - 0.5)


@pytest.mark.parametrize(
    "history", [[(20, 1e-3, 100_000)], [(150, 1 / 14, 2100)], DP_FETA, FETA_PRO_10, [(0.6, 0.05, 99)]]
)
def test_pld_never_exceeds_rdp(history):  # R13; the first two need the finer interval
    assert 0 < cost(history, delta=1e-6) <= cost(history, delta=1e-6, accountant="rdp")


def test_rounding_below_zero_is_not_epsilon_zero():
    """From a negative divergence dp_accounting concludes epsilon 0: such an order must count as unknown."""
    exact = RdpAccountant(OPACUS_ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
    exact.compose(dp.PoissonSampledDpEvent(1e-8, dp.GaussianDpEvent(1e4)), 1)
    assert min(exact.rdp) < 0, "the premise of this test"
    found = accounting.rdp(merged([(1e4, 1e-8, 1)]), tuple(OPACUS_ORDERS))
    assert {value for value, known in zip(found, exact.rdp, strict=True) if known <= 0} == {math.inf}


# Published noise.


@pytest.mark.parametrize(
    ("spatial", "published"),
    [
        (2, (152.4, 50.98, 39.56, 37.67, 36.22)),
        (5, (16.74, 16.00, 15.51, 15.39, 15.29)),
        (10, (16.33, 15.65, 15.19, 15.07, 14.98)),
        (20, (16.25, 15.57, 15.12, 15.01, 14.91)),
        (30, (16.23, 15.55, 15.10, 14.99, 14.90)),
    ],
)
def test_table_11_of_feta_pro(spatial, published):  # R5; the table has lost its axes, these are the ones that fit
    for frequency, sigma in zip((11, 15, 25, 34, 66), published, strict=True):
        queries = [(spatial, 6000 / N, 5), (frequency, 1, 1)]
        at = [
            cost([*queries, (sigma + nudge, 4096 / N, 2014)], delta=FETA_DELTA, accountant="rdp")
            for nudge in (0.02, -0.02)
        ]
        assert at[0] <= 1 < at[1]  # the noise that meets epsilon 1 lies between


@pytest.mark.parametrize(
    ("q", "steps", "before", "target", "delta", "accountant", "sigma", "tolerance"),
    [
        pytest.param(1 / 15, 2250, DP_FETA[:1], 1, 1e-5, "rdp", 13.085, 0.01, id="R4-rdp"),
        pytest.param(1 / 15, 2250, DP_FETA[:1], 1, 1e-5, "pld", 12.031, 0.01, id="R4-pld"),
        pytest.param(4096 / 60000, 2200, DP_FETA[:1], 1, 1e-5, "rdp", 13.2, 0.1, id="DP-FETA-Table-9-rdp"),
        pytest.param(4096 / 60000, 2200, DP_FETA[:1], 1, 1e-5, "prv", 12.2, 0.1, id="DP-FETA-Table-9-prv"),
        pytest.param(4096 / 60000, 4000, (), 10, 1e-5, "rdp", 2.410, 1e-3, id="R7-rdp"),
        pytest.param(4096 / 60000, 4000, (), 10, 1e-5, "pld", 2.282, 1e-3, id="R7-pld"),
        pytest.param(1 / 14, 2100, FETA_PRO_1[:2], 1, FETA_DELTA, "rdp", 14.778, 2e-3, id="FETA-Pro-rdp"),
        pytest.param(1 / 14, 2100, FETA_PRO_1[:2], 1, FETA_DELTA, "pld", 13.721, 2e-3, id="FETA-Pro-pld"),
        pytest.param(1 / 14, 2100, FETA_PRO_1[:2], 1, FETA_DELTA, "prv", 13.857, 5e-3, id="FETA-Pro-prv"),
        pytest.param(1 / 14, 2100, FETA_PRO_10[:2], 10, FETA_DELTA, "rdp", 1.9992, 6e-3, id="FETA-Pro-10-rdp"),
        pytest.param(1 / 14, 2100, FETA_PRO_10[:2], 10, FETA_DELTA, "pld", 1.9027, 6e-3, id="FETA-Pro-10-pld"),
    ],
)
def test_calibration_finds_the_published_noise(q, steps, before, target, delta, accountant, sigma, tolerance):
    found = calibrate(q, steps, before=before, target=target, delta=delta, accountant=accountant)
    assert found == pytest.approx(sigma, abs=tolerance)


def test_gaussians_need_the_analytic_noise():  # R8
    for releases, sigmas in ((1, (3.7306, 0.4999, 16.3041)), (2, (5.2759, 0.7069, 23.0575))):
        for target, sigma in zip((1.0, 10.0, 0.2), sigmas, strict=True):
            assert calibrate(1, releases, target=target) == pytest.approx(sigma, abs=5e-4, rel=1.5e-4)
    # DP-MEPF: two releases, and two of ten times the noise that choose when to stop.
    assert cost([(5.3022, 1, 2), (53.022, 1, 2)]) == pytest.approx(1, abs=2e-4)


# Calibration.


def test_calibration_is_exact_where_others_took_nearly_all():
    before = [(4.0, 1, 1)]
    target = 1.02 * cost(before, delta=1e-5)
    sigma = calibrate(1 / 14, 2100, before=before, target=target)
    assert cost([*before, (sigma, 1 / 14, 2100)], target=target) <= target
    assert cost([*before, (sigma * (1 - 1.5e-4), 1 / 14, 2100)], target=target) > target, "not the smallest"


@QUICK
@given(log_target=st.floats(-1, 1.3), log_q=st.floats(-2, 0), steps=st.integers(50, 3000))
def test_calibration_is_exact_to_1e_4(log_target, log_q, steps):
    target, q = 10**log_target, 10**log_q
    sigma = calibrate(q, steps, target=target)
    at = [cost([(part * sigma, q, steps)], target=target, refine=False) for part in (1, 1 - 1.01e-4)]
    assert at[0] <= target < at[1]


@pytest.mark.parametrize(("q", "steps", "delta"), [(0.1, 20, 1e-300), (1.0, 1, 1e-300)])
def test_a_delta_that_pld_cannot_count_names_the_flags(q, steps, delta):
    """Its pessimistic tail alone is about 1e-15, where rounding decides; RDP has none."""
    with pytest.raises(UsageError) as refusal:
        accounting.calibrate((), sampled(q), steps, 10.0, delta, "pld", 0.0, 1e-2)
    text = str(refusal.value)
    assert f"--accountant pld finds no noise multiplier up to 1e+07 that meets epsilon 10 at delta {delta:g}" in text
    assert all(word in text for word in ("--target_delta", "--target_epsilon", "give --accountant rdp")), text
    assert 0.1 < accounting.calibrate((), sampled(q), steps, 10.0, delta, "rdp", 0.0, 1e-2) < 10


def test_a_delta_that_prv_cannot_count_names_the_flags():
    with pytest.raises(
        UsageError,
        match="--accountant prv cannot count at delta 1e-14: raise --target_delta, or give --accountant rdp",
    ):
        accounting.epsilon(merged([(0.36, 0.1, 20)]), 1e-14, "prv")
