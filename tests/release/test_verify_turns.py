# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts of steps in which each unit has exactly k of t turns: a stranger finds the same epsilon, and what would
lower it is named."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import PLD_accounting
import pytest

from diffusers_dp import verify
from diffusers_dp.accounting.attack_bounds import attack_bounds, attack_bounds_of
from diffusers_dp.accounting.epsilon import Question, Turns, merge
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.app.budget import plan_of_receipt
from diffusers_dp.commands.plan_picture import picture_of
from support.ledgers import row
from support.releases import RECEIPT, forge, make_release
from support.turns import KEY, turns_row


FACTS = {"target_delta": 1e-5, "num_images": 5000, "target_epsilon": 9.0, "dataset_id": "scans"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """After another release of the same images, with a key of its own. Of each, some steps were never reserved."""
    path = tmp_path_factory.mktemp("ledgers") / "scans.jsonl"
    for name, key in (("a", bytes(32)), ("b", KEY)):
        ledger = PrivacyLedger(path, release_id=name, dataset_epsilon=9.0, **FACTS)
        if name == "b":
            ledger.reserve(row(9.0, name="query"))
        for steps in (5, 6, 3):
            ledger.executed(ledger.reserve(replace(turns_row(key=key), steps=steps)), 1)
        ledger.close()
    return make_release(tmp_path_factory.mktemp("run"), ledger=ledger)


@pytest.fixture
def release(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "release"))


def by_hand(number, sigma=None):
    """By PLD_accounting's own sum of so many allocations, and dp_accounting's of a Gaussian."""
    params = PLD_accounting.PrivacyParams(sigma=2.0, num_steps=6, num_selected=2)
    config = PLD_accounting.AllocationSchemeConfig(loss_discretization=0.4)
    pld = one = PLD_accounting.gaussian_allocation_pld(params=params, config=config)
    for _ in range(number - 1):
        pld = pld.compose(one)
    if sigma is not None:
        interval = one._pmf_remove._discretization
        pld = pld.compose(type(one)(*_gaussian(sigma, interval)))
    return pld.get_epsilon_for_delta(1e-5)


def _gaussian(sigma, interval):
    from dp_accounting.pld import privacy_loss_distribution

    pld = privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=interval)
    return pld._pmf_remove, pld._pmf_add


def test_a_stranger_finds_the_same_epsilon(release, capsys):
    """On a coarser grid he finds a little more."""
    assert verify.report(release) == 0
    assert "numbers consistent" in capsys.readouterr().out
    receipt = json.loads((release / RECEIPT).read_text())
    claim, together = receipt["claimed_epsilon"], receipt["dataset"]["epsilon_of_all_releases"]["pld"]
    assert set(claim) == {"pld"}, "only PLD counts turns"
    assert claim["pld"]["epsilon"] == pytest.approx(by_hand(1, 9.0), rel=0.02)
    assert claim["pld"]["epsilon"] < together == pytest.approx(by_hand(2, 9.0), rel=0.02)
    assert receipt["versions"]["PLD_accounting"] == "2.0" and any("BLAKE2b" in text for text in receipt["assumptions"])


def test_card_and_picture_know_the_turns(release):
    assert "in exactly 2 of 6 turns" in " ".join((release / "README.md").read_text().split())
    receipt = json.loads((release / RECEIPT).read_text())
    plan = plan_of_receipt(receipt)
    assert plan.ledger.epsilon() == pytest.approx(receipt["claimed_epsilon"]["pld"]["epsilon"], abs=1e-6)
    assert plan.sampling.expected_batch_size == pytest.approx(5000 / 12)
    assert picture_of(plan)[:4] == b"\x89PNG"


@pytest.mark.parametrize("all_releases", [False, True])
def test_bounds_on_attacks_are_of_all_turns(release, all_releases):
    """They are those of the allocation itself, not of one step."""
    receipt = json.loads((release / RECEIPT).read_text())
    turns = Question(2.0, 2 / 6, 2 if all_releases else 1, None, Turns(6, 2, 0.4))
    expected = attack_bounds(merge([turns, Question(9.0, 1.0, 1)]), 1e-4)
    found = attack_bounds_of(receipt, all_releases=all_releases)
    assert found.advantage == pytest.approx(expected.advantage, abs=1e-9)
    assert found.true_positive_rates == pytest.approx(dict(expected.true_positive_rates), abs=1e-9)


def test_who_lacks_the_package_is_told(release, capsys, monkeypatch):
    verify._allocation.cache_clear()
    monkeypatch.setitem(sys.modules, "PLD_accounting", None)
    assert verify.report(release) == 2
    assert "PLD_accounting is not installed: pip install PLD_accounting." in capsys.readouterr().err


def turns(receipt):
    return [event for event in receipt["events"] if event["mechanism"] == "allocated_gaussian"]


def everywhere(**changes):
    return lambda receipt: [event.update(changes) for event in turns(receipt)]


def in_query(**changes):
    return lambda receipt: [event["query"].update(changes) for event in turns(receipt)]


def other_turns(turns, participations):
    def change(receipt):
        everywhere(sampling_probability=participations / turns)(receipt)
        in_query(turns=turns, participations=participations, sample_rate=participations / turns / 4)(receipt)

    return change


FORGERIES = {
    "fewer turns of each unit": (other_turns(6, 1), "but the receipt claims"),
    "more turns in all": (other_turns(12, 2), "but the receipt claims"),
    "less noise": (everywhere(noise_multiplier=1.5), "cost epsilon"),
    "a gap": (lambda r: turns(r)[2].update(first_step=12), "leave a gap"),
    "a lost turn asked again": (lambda r: turns(r)[2].update(first_step=10), "overlap"),
    "steps behind all turns": (lambda r: turns(r)[2].update(steps_reserved=20), "more than the 24"),
    "a key of one event": (
        lambda r: turns(r)[1]["query"].update(participation_key_sha256="0" * 64), "change between events",
    ),
    "no key": (lambda r: [event["query"].pop("participation_key_sha256") for event in turns(r)], "secret key"),
    "a key of two releases": (
        lambda r: in_query(
            participation_key_sha256=r["prior_releases"][0]["events"][0]["query"]["participation_key_sha256"]
        )(r),
        "by one key",
    ),
    "turns that are words": (in_query(turns="6"), "fewer than all"),
    "turns without end": (other_turns(10**6, 2), "at most 2000"),
    "participations that are true": (in_query(participations=True), "fewer than all"),
    "all turns": (in_query(participations=6), "fewer than all"),
    "an unknown grid": (in_query(loss_step=0.3), "its grid"),
    "a grid that takes hours": (in_query(loss_step=1e-9), "its grid"),
    "another rate": (everywhere(sampling_probability=0.25), "not its participations by its turns"),
    "the proof to the bit": (in_query(grid=2**18), "proof to the bit"),
    "no kind of ids": (in_query(ids="name"), "secret key"),
    "no place": (lambda r: turns(r)[0].pop("first_step"), "lack their first step"),
    "no query": (everywhere(query=None), "lack their first step"),
    "a column that is too long": (in_query(coefficients=[1.0, 0.5, 0.4, 0.3]), "sum above 1"),
    "truncation": (everywhere(truncated_batch_size=400), "mechanism does not fit"),
    "coins with fewer participations": (everywhere(mechanism="banded_gaussian"), "by the accountants"),
    "parallel classes": (everywhere(partition="label"), "parallel"),
    "a claim by RDP": (lambda r: r["claimed_epsilon"].update(rdp={"epsilon": 1.0, "orders": [2.0]}), "Only PLD"),
    "noise that takes hours to count": (
        lambda r: (other_turns(1999, 900)(r), everywhere(noise_multiplier=0.1)(r)), "cannot be computed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_receipt_is_named(release, forgery, capsys):
    change, words = FORGERIES[forgery]
    problems = forge(release, change)
    assert any(words in problem for problem in problems), problems
    assert verify.report(release) == 4 and "could not be checked" not in capsys.readouterr().err
