# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Ledgers, and what they say without a line of the library."""

import json
import math

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.mechanisms import sampled


#: What a door says of every query.
SAID = {"clip_norm": 1.0}


def row(sigma, q=1.0, steps=1, name="stage", *, facts=SAID, **of_mechanism):
    return LedgerRow(name, sampled(q, sigma, **of_mechanism), steps, facts)


def on_disk(folder, **changes):
    settings = {
        "target_epsilon": 1.0,
        "target_delta": 1e-5,
        "num_images": 55000,
        "public_facts": {"labels": ["a", "b"]},
    }
    return PrivacyLedger(folder / "private" / "ledger.jsonl", **{**settings, **changes})


def lines(ledger):
    return [json.loads(line) for line in ledger.path.read_text().splitlines()]


def independent_epsilon(path, interval=1e-4):
    """Epsilon of a ledger file, from its JSON alone and without a line of the library; PLD by that interval of its
    grid."""
    header, *events = [json.loads(line) for line in path.read_text().splitlines()]
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, interval)
    for event in events:
        query = dp.GaussianDpEvent(event["noise_multiplier"])
        if event["mechanism"] == "poisson_gaussian":
            query = dp.PoissonSampledDpEvent(event["sampling_probability"], query)
        accountant.compose(query, event["steps_reserved"])
    return accountant.get_epsilon(header["target_delta"])


#: Images of the two ledgers below.
N = 6


def unprotected(path=None, **more):
    return PrivacyLedger(
        path, target_epsilon=math.inf, target_delta=1e-5, num_images=N, has_guarantee=False, **more
    )  # fmt: skip


def protected(path=None, target=1e9):
    return PrivacyLedger(path, target_epsilon=target, target_delta=1e-5, num_images=N, accountant="rdp")
