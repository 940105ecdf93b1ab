# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The mechanism of docs/architecture.md: two files and two lines, and ledger, door and audit take it. And every kind
against the contract of `Mechanism`."""

import importlib.util
import itertools
import json
import re
import sys

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from diffusers_dp.accounting.epsilon import merge, rdp_epsilon
from diffusers_dp.accounting.ledger_row import LedgerRow, gradient_row
from diffusers_dp.audit.checks import stand_in_runs
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import KINDS, Banded, Everyone, Mechanism, Poisson, Shares, kinds, mechanism_of
from diffusers_dp.privacy.kinds import AT_THE_DOOR
from support.bands import bands_of, numbered, one_hot_loss, one_weight_each
from support.doors import make_door, make_ledger, put
from support.ledgers import on_disk
from support.places import ROOT


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```python title="([^"]+fixed_size.py)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
COUNT, SIZE = 60, 12


@pytest.fixture
def fixed_size(monkeypatch):
    """The mechanism of the page, in the two lists."""
    for title, code in FILES.items():
        name = title.removesuffix(".py").replace("/", ".")
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader=None))
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, title, "exec"), module.__dict__)
    of = sys.modules["diffusers_dp.mechanisms.fixed_size"].FixedSize
    monkeypatch.setattr(kinds, "KINDS", (*KINDS, of))
    monkeypatch.setitem(AT_THE_DOOR, of, sys.modules["diffusers_dp.privacy.fixed_size"].FixedSizePassage)
    return of(noise_multiplier=3.0, rate=SIZE / COUNT)


def test_the_ledger_takes_it_and_reads_it_again(fixed_size, tmp_path):
    row = gradient_row(fixed_size, max_grad_norm=1.0, normaliser=float(SIZE), steps=40)
    ledger = on_disk(tmp_path, target_epsilon=50.0, accountant="rdp")
    ledger.reserve(row)
    again = on_disk(tmp_path, target_epsilon=50.0, accountant="rdp")
    assert again.asked == [row] and again.rows == ledger.rows
    by_hand = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    by_hand.compose(dp.PoissonSampledDpEvent(SIZE / COUNT, dp.GaussianDpEvent(1.5)), 40)
    assert ledger.epsilon() == pytest.approx(by_hand.get_epsilon(1e-5), rel=5e-3)
    sigma = on_disk(tmp_path / "other", target_epsilon=2.0).calibrate(fixed_size, 40)
    assert sigma > 3.0


def test_the_door_draws_it(fixed_size):
    door = make_door(images=numbered(COUNT), class_names=None, ledger=make_ledger(COUNT))
    quiet = fixed_size.with_noise(0.01)
    model = one_weight_each(COUNT)
    arguments = {"max_grad_norm": 1.0, "normaliser": 1.0, "noise_multiplicity": 1, "max_physical_batch_size": 64}
    found = [
        put(door, "noisy_gradient", model, one_hot_loss, quiet, **arguments)["weight"][0, 1:].numpy() for _ in range(6)
    ]
    taken = np.stack(found) > 0.5
    assert (taken.sum(1) == SIZE).all() and len({tuple(each) for each in taken.tolist()}) == 6


def test_the_audit_of_the_door_takes_it(fixed_size):
    honest = stand_in_runs(gradient_row(fixed_size, max_grad_norm=1.0, normaliser=12.0), 1e-5, quick=True)[0]
    assert [check.name for check in honest.checks if not check.passed] == []


# Every kind.

EVERY = {
    "everyone": Everyone(noise_multiplier=2.0, by_label=True),
    "poisson": Poisson(noise_multiplier=2.0, rate=0.1, max_images_per_unit=4),
    "exact": Poisson(noise_multiplier=2.0, rate=0.1, exact=True),
    "banded": bands_of(4),
    "shares": Shares(noise_multiplier=2.0, number=5, group_key="0" * 32),
    "votes": Shares(noise_multiplier=2.0, number=5, votes=6, group_key="0" * 32, ids="path"),
    "none": Poisson(noise_multiplier=2.0, rate=0.1).with_noise(0.0),
}


def test_every_kind_is_here():
    assert {type(mechanism) for mechanism in EVERY.values()} == set(KINDS)


@pytest.mark.parametrize("mechanism", EVERY.values(), ids=EVERY)
def test_a_row_says_its_mechanism(mechanism):
    row = LedgerRow("x", mechanism, 3, {"clip_norm": 6**0.5})
    entry = json.loads(json.dumps({**row.entry, "steps_reserved": 3}))
    assert LedgerRow.read(entry) == row and mechanism_of(entry) == mechanism
    for wrong in ({"mechanism": "laplace"}, {"sampling_probability": 1.5}, {"bands": 3}):
        with pytest.raises((UsageError, KeyError)):
            LedgerRow.read({**entry, **wrong})
    with pytest.raises(UsageError):
        LedgerRow.read({**entry, "query": {**entry["query"], "sensitivity": entry["query"]["sensitivity"] / 2}})


def cuts(steps: int):
    """All ways to cut a stream into pieces that follow each other."""
    for places in itertools.chain.from_iterable(itertools.combinations(range(1, steps), n) for n in range(steps)):
        ends = [0, *places, steps]
        yield [end - start for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize("mechanism", [EVERY["poisson"], bands_of(2), bands_of(4)], ids=["poisson", "2", "4"])
def test_no_cut_of_a_stream_is_cheaper_than_the_whole(mechanism: Mechanism):
    whole = rdp_epsilon(merge([mechanism.event(7)]), 1e-5)[0]
    for pieces in cuts(7):
        assert rdp_epsilon(merge(map(mechanism.event, pieces)), 1e-5)[0] >= whole - 1e-12


@pytest.mark.parametrize("mechanism", [bands_of(2), bands_of(4)], ids=["2", "4"])
def test_no_unit_takes_part_more_often_than_is_counted(mechanism: Banded):
    for first, steps in itertools.product(range(5), range(1, 12)):
        groups = [step % mechanism.num_groups for step in range(first, first + steps)]
        assert max(map(groups.count, groups)) <= mechanism.turns(steps)


def test_the_sensitivity_of_shares_is_that_of_an_arbitrary_change():
    assert EVERY["shares"].sensitivity(3.0) == 6.0
    assert EVERY["votes"].sensitivity(6**0.5) == pytest.approx((2 * 6) ** 0.5)
    with pytest.raises(ValueError, match="votes have the norm"):
        EVERY["votes"].sensitivity(1.0)
