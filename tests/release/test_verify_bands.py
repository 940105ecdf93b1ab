# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts of steps with bands: a stranger finds the same epsilon, and what would lower it is named."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.release import receipt as receipts
from support.bands import banded_row
from support.ledgers import row
from support.releases import RECEIPT, forge, make_release


FACTS = {"target_delta": 1e-5, "num_images": 5000, "target_epsilon": 9.0, "dataset_id": "scans"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """After another release of the same images, with groups of its own: of each the steps are no multiple of 4."""
    path = tmp_path_factory.mktemp("ledgers") / "scans.jsonl"
    for name in ("a", "b"):
        ledger = PrivacyLedger(path, release_id=name, dataset_epsilon=9.0, **FACTS)
        ledger.reserve(row(9.0, name="query"))
        for steps in (5, 6, 7, 3):
            ledger.executed(ledger.reserve(replace(banded_row(4, seed=ord(name)), steps=steps)), 1)
        ledger.close()
    return make_release(tmp_path_factory.mktemp("run"), ledger=ledger)


@pytest.fixture
def release(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "release"))


def by_hand(*releases):
    """Knows the receipt's JSON and dp_accounting alone."""
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for events in releases:
        for event in (event for event in events if event["mechanism"] == "gaussian"):
            accountant.compose(dp.GaussianDpEvent(event["noise_multiplier"]), event["steps_reserved"])
        banded = [event for event in events if event["mechanism"] == "banded_gaussian"]
        turns = math.ceil(sum(event["steps_reserved"] for event in banded) / banded[0]["bands"])
        step = dp.GaussianDpEvent(banded[0]["noise_multiplier"])
        accountant.compose(dp.PoissonSampledDpEvent(banded[0]["sampling_probability"], step), turns)
    return accountant.get_epsilon(1e-5)


def test_a_stranger_finds_the_same_epsilon(release, capsys):
    assert verify.report(release) == 0
    assert "numbers consistent" in capsys.readouterr().out
    receipt = json.loads((release / RECEIPT).read_text())
    (prior,) = receipt["prior_releases"]
    claim, together = receipt["claimed_epsilon"]["pld"], receipt["dataset"]["epsilon_of_all_releases"]["pld"]
    assert claim["epsilon"] == pytest.approx(by_hand(receipt["events"]), abs=1e-6)
    assert together == pytest.approx(by_hand(receipt["events"], prior["events"]), abs=1e-6)
    assert [event["first_step"] for event in receipt["events"][1:]] == [0, 5, 11, 18]
    assert sum(event["steps_reserved"] for event in receipt["events"][1:]) == 21, "6 turns, not 12 / 2"


def test_many_reservations_are_added_up_in_the_receipt(monkeypatch, tmp_path):
    monkeypatch.setattr(receipts, "MOST_EVENTS", 3)
    ledger = PrivacyLedger(None, target_epsilon=9.0, target_delta=1e-5, num_images=5000)
    for steps in (5, 6, 7, 3):
        ledger.reserve(replace(banded_row(4), steps=steps))
    release = make_release(tmp_path, ledger=ledger)
    (event,) = json.loads((release / RECEIPT).read_text())["events"]
    assert (event["first_step"], event["steps_reserved"]) == (0, 21) and verify.verify(release)[1] == []


def turns(receipt):
    return [event for event in receipt["events"] if event["mechanism"] == "banded_gaussian"]


def banded(receipt, number=0):
    return turns(receipt)[number]


def everywhere(**changes):
    return lambda receipt: [event.update(changes) for event in turns(receipt)]


def in_query(**changes):
    return lambda receipt: [event["query"].update(changes) for event in turns(receipt)]


def scaled(factor):
    return lambda r: in_query(coefficients=[factor * c for c in banded(r)["query"]["coefficients"]])(r)


FORGERIES = {
    "a gap": (lambda r: banded(r, 2).update(first_step=12), "leave a gap"),
    "an overlap": (lambda r: banded(r, 2).update(first_step=10), "overlap"),
    "the same steps twice": (lambda r: r["events"].append(banded(r, 1)), "overlap"),
    "an event left out": (lambda r: r["events"].remove(banded(r, 1)), "leave a gap"),
    "the first event left out": (lambda r: r["events"].remove(banded(r, 0)), "leave a gap"),
    "the last event left out": (lambda r: r["events"].remove(banded(r, 3)), "cost epsilon"),
    "noise of one event": (lambda r: banded(r, 1).update(noise_multiplier=2.5), "change between events"),
    "a key that is none": (in_query(group_key="7"), "group_key and 3 more must be a text of the form [0-9a-f]{32}"),
    "no kind of ids": (in_query(ids="name"), 'query.ids and 3 more must be "column" or "path" or "row"'),
    "groups of one event": (lambda r: banded(r, 1)["query"].update(group_key="0" * 32), "change between events"),
    "more bands": (everywhere(bands=8), "as many coefficients"),
    "more bands than units": (
        lambda r: (r["public_facts"].update(num_images=3), [event.update(dataset_size=3) for event in r["events"]]),
        "more bands",
    ),
    "one band": (everywhere(bands=1), "from 2 to 1000"),
    "a column that is too long": (scaled(1.0001), "sum above 1"),
    "no inverse": (lambda r: in_query(coefficients=[0.0, *banded(r)["query"]["coefficients"][1:]])(r), "above 0"),
    "a smaller rate within the group": (everywhere(sampling_probability=0.05), "times its bands"),
    "a smaller rate of all": (in_query(sample_rate=0.01), "times its bands"),
    "a rate within the group above 1": (everywhere(sampling_probability=1.2), "between 0 and 1"),
    "plain sampling with bands": (everywhere(mechanism="poisson_gaussian"), "bands and 3 more must not be there"),
    "a prior release with a gap": (
        lambda r: banded(r["prior_releases"][0], 1).update(first_step=6), "A prior release",
    ),
    "releases merged before turns are counted": (
        lambda r: r["dataset"]["epsilon_of_all_releases"].update(
            pld=by_hand([*r["events"], *r["prior_releases"][0]["events"]])
        ),
        "All releases together cost",
    ),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_receipt_is_named(release, forgery, capsys):
    change, words = FORGERIES[forgery]
    problems = forge(release, change)
    assert any(words in problem for problem in problems), problems
    assert verify.report(release) == 4 and "could not be checked" not in capsys.readouterr().err
