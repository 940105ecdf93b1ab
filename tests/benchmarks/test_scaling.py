# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The simulation behind `docs/measured.md`: real samples, a real ledger, and formulas that are right."""

import sys

import numpy as np
import pytest

from diffusers_dp import PrivacyLedger
from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.mechanisms import sampled
from support.places import ROOT, module_of


@pytest.fixture(scope="module")
def scaling():
    return module_of(ROOT / "benchmarks" / "scaling.py")


def arguments(scaling, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--images_per_rank", "500", "--batch_per_rank", "20", *flags])
    return scaling.parse_args()


def test_the_fullest_of_many_ranks(scaling):
    draws = np.random.default_rng(0).binomial(500, 0.04, (20_000, 30)).max(1)
    assert scaling.expected_largest(30, 500, 0.04) == pytest.approx(draws.mean(), abs=5 * draws.std() / 20_000**0.5)
    assert scaling.expected_largest(1, 500, 0.04) == pytest.approx(20)


def test_ranks_cost_what_one_process_costs(scaling, monkeypatch):
    """Epsilon is that of one ledger for all images; without neighbours nothing is sent, and nobody waits."""
    args = arguments(scaling, monkeypatch, "--ranks", "1", "8")
    alone, many = (scaling.simulate(ranks, args) for ranks in args.ranks)
    ledger = PrivacyLedger(None, target_epsilon=10, target_delta=1 / (4000 * np.log(4000)), num_images=4000)
    row = gradient_row(sampled(0.04), max_grad_norm=1.0, normaliser=160.0)
    for _ in range(scaling.STEPS):
        ledger.take_step(row)
    assert alone.epsilon == many.epsilon == pytest.approx(ledger.epsilon(), rel=1e-9)
    assert alone.all_reduce == 0 and alone.waiting == pytest.approx(alone.noise)
    message = 4 * args.parameters
    assert many.all_reduce == pytest.approx(2 * 7 / 8 * message / args.bandwidth + 14 * args.latency)
    assert many.batch == pytest.approx(160, abs=6 * 160**0.5) and many.largest > 20
    assert many.step > many.compute + many.waiting
