# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The registry of methods, what it prints, and counterexamples to PGE's claim."""

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.method import PROVEN, STATUSES
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.release.receipt import RunRecord, build_receipt
from support.places import ROOT
from support.receipts import RNG, make_ledger


@pytest.mark.parametrize("name", METHODS)
def test_each_method_says_what_its_status_rests_on(name):
    """A proof for each of its mechanisms is in the documentation; without guarantee there is none to point at."""
    method = METHODS[name]
    assert method.name == name and method.status in STATUSES
    assert method.note.endswith((".", ")")) and method.paper
    assert bool(method.mechanisms) == (method.status in PROVEN)
    headings = [
        line.lstrip("# ") for line in (ROOT / "docs" / "guarantee.md").read_text().splitlines() if line[:1] == "#"
    ]
    for mechanism in method.mechanisms:
        assert any(heading.endswith(mechanism) for heading in headings), mechanism


@pytest.mark.parametrize("name", ["pge", "dpgen", "p3gm", "dp_sinkhorn"])
def test_no_receipt_claims_an_epsilon_for_a_method_without_guarantee(name):
    with pytest.raises(UsageError, match=f"{METHODS[name].title} has no guarantee"):
        build_receipt(RunRecord(ledger=make_ledger(), method=METHODS[name]), files=[], rng=RNG)


# PGE's Theorem 1 claims epsilon-DP. This shows that it has none.
