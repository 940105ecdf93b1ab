# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The registry of methods, what it prints, and counterexamples to PGE's claim."""

import dataclasses
import math

import dp_accounting as dp
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from diffusers_dp.accounting.ledger import LedgerRow
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled
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


def test_methods_whose_proof_fails_are_listed_as_such():
    without = {name for name, method in METHODS.items() if method.status == "no_guarantee"}
    refuted = {name for name, method in METHODS.items() if method.status == "claim_refuted"}
    assert without == {"pge", "dpgen", "dp_kernel_published"}
    assert refuted == {f"{name}_published" for name in ("gs_wgan", "g_pate", "datalens", "pate_gan")} | {"p3gm"}


def test_a_receipt_states_what_the_registry_says():
    receipt = build_receipt(RunRecord(ledger=make_ledger(), method=METHODS["feta_pro"]), files=[], rng=RNG)
    assert receipt["status"] == METHODS["feta_pro"].status == "proven_with_assumptions"
    words = {"name": "FETA-Pro", "paper": METHODS["feta_pro"].paper, "status": "proven_with_assumptions"}
    assert receipt["method"] == words
    stronger = dataclasses.replace(METHODS["feta_pro"], status="proven")
    assert build_receipt(RunRecord(ledger=make_ledger(), method=stronger), files=[], rng=RNG)["status"] == "proven"


@pytest.mark.parametrize("name", ["pge", "dpgen", "p3gm", "dp_sinkhorn"])
def test_no_receipt_claims_an_epsilon_for_a_method_without_guarantee(name):
    with pytest.raises(UsageError, match=f"{METHODS[name].title} has no guarantee"):
        build_receipt(RunRecord(ledger=make_ledger(), method=METHODS[name]), files=[], rng=RNG)


# PGE's Theorem 1 claims epsilon-DP. This shows that it has none.


def pge_step(images, theta, learning_rate, num_neighbours, epsilon, generator):
    """One SGD step of PGE's Equation 8 for the model q(x) = theta x: grad of `R(v)' grad_x q R(v) + (v' q)^2 / 2`,
    where randomised response (Equation 6) replaces v by one of its k nearest with a probability that epsilon
    decides."""
    v = torch.randn(images.shape, generator=generator)
    nearest = (torch.nn.functional.normalize(v) @ torch.nn.functional.normalize(v).T).topk(num_neighbours + 1).indices
    kept = torch.rand(len(v), generator=generator) < math.exp(epsilon) / (math.exp(epsilon) + num_neighbours - 1)
    other = nearest[torch.arange(len(v)), torch.randint(1, num_neighbours + 1, (len(v),), generator=generator)]
    response = torch.where(kept[:, None], v, v[other])
    gradient = response.square().sum(1) + theta * (v * images).sum(1).square()  # d/d theta of both terms
    return theta - learning_rate * gradient.sum() / 50


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0])
def test_pge_has_no_finite_epsilon(epsilon):
    """theta_0 < 0. Of blank images, theta falls with probability 1, whatever is drawn. With one white image more, it
    rises with positive probability. The event "theta rose" has probability 0 under one neighbour only, so that P <=
    e^eps 0 fails for every eps."""
    generator, rose = torch.Generator().manual_seed(0), {"blank": 0, "one white": 0}
    for _ in range(300):
        images = torch.zeros(50, 64)
        images[0] = (
            1.0  # its part, |theta_0| (v'x)^2 = 32 * 64 * chi-square(1), against about 50 * 64 of all first terms
        )
        for name, data in (("blank", images[1:]), ("one white", images)):
            rose[name] += int(pge_step(data, -32.0, 0.1, 10, epsilon, generator) > -32.0)
    assert rose["blank"] == 0 and rose["one white"] > 0
    assert METHODS["pge"].status == "no_guarantee"


@pytest.mark.parametrize("accountant", [PLDAccountant, RdpAccountant])
def test_what_has_no_guarantee_composes_to_an_infinite_epsilon(accountant):
    """However much noise the rest has; and the ledger holds no query without noise, for it would be the end of its
    claim."""
    composed = accountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    composed.compose(dp.GaussianDpEvent(100.0)).compose(dp.NonPrivateDpEvent())
    assert composed.get_epsilon(1e-5) == math.inf
    right = {**LedgerRow("pge", sampled(1.0)).entry, "steps_reserved": 1}
    for wrong in ({"mechanism": "non_private"}, {"noise_multiplier": 0.0}, {"noise_multiplier": math.nan}):
        with pytest.raises(UsageError):
            LedgerRow.read({**right, **wrong})
