# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Steps with bands in the ledger: how often a unit takes part, who goes on with whose groups, and what a file may
say."""

import json
import math
from dataclasses import replace

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.mechanisms import Banded
from support.bands import banded_row, bands_of
from support.ledgers import lines, on_disk, row


MANY = settings(max_examples=30, deadline=None, derandomize=True)


def in_memory(target=1e6, accountant="rdp", **more):
    return PrivacyLedger(
        None, target_epsilon=target, target_delta=1e-5, num_images=5000, accountant=accountant, **more
    )


def rdp(*queries):
    """Of (sigma, q, steps), without a line of the library."""
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    for sigma, q, steps in queries:
        accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)), steps)
    return accountant.get_epsilon(1e-5)


@MANY
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from([2, 4, 8]))
def test_steps_are_added_up_before_turns_are_counted(reservations, bands):
    """The busiest group of all steps of the release, however they were reserved, executed or not."""
    ledger, query = in_memory(), banded_row(bands)
    for steps in reservations:
        ledger.reserve(replace(query, steps=steps))
    turns = math.ceil(sum(reservations) / bands)
    plain = in_memory()
    plain.reserve(row(2.0, bands * 0.05, turns))
    assert ledger.epsilon() == plain.epsilon()
    assert [each["first_step"] for each in ledger.rows] == [sum(reservations[:i]) for i in range(len(reservations))]
    assert ledger.epsilon_by_stage() == [("dp_sgd", ledger.epsilon())]
    assert ledger.budget_shares() == {"dp_sgd": pytest.approx(1)}


def test_calibration_gate_and_affordable_steps_agree():
    ledger = in_memory(target=2.0, accountant="pld")
    ledger.reserve(row(8.0, name="query"))
    sigma = ledger.calibrate(bands_of(8, rate=0.01), 101)
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    accountant.compose(dp.GaussianDpEvent(8.0))
    accountant.compose(dp.PoissonSampledDpEvent(0.08, dp.GaussianDpEvent(sigma)), 13)
    assert 1.999 < accountant.get_epsilon(1e-5) <= 2.0
    query = banded_row(8, sigma=sigma, sample_rate=0.01)
    assert ledger.affordable_steps(query, 1000) == 104, "rounding up to a multiple of the bands is free"
    for first in (0, 50, 100):
        ledger.reserve(replace(query, steps=50 if first < 100 else 4))
    assert ledger.affordable_steps(query, 1000) == 0 and ledger.epsilon() <= 2.0
    with pytest.raises(BudgetExceeded):
        ledger.reserve(query)


def test_slack_is_counted_with_the_steps():
    """The plan's rows of two stages are one stream, and their shares add up to one."""
    ledger, plain = in_memory(), in_memory()
    ledger.reserve(row(8.0, name="query"))
    plain.reserve(row(8.0, name="query"))
    ledger.reserve(replace(banded_row(4), steps=18))
    ledger.reserve(replace(banded_row(4), name="restart_slack", steps=2))
    plain.reserve(row(2.0, 0.2, 5))
    assert ledger.epsilon() == plain.epsilon() and ledger.rows[2]["first_step"] == 18
    shares = ledger.budget_shares()
    assert sum(shares.values()) == pytest.approx(1) and shares["dp_sgd"] == pytest.approx(9 * shares["restart_slack"])


def test_a_step_hands_back_its_position(tmp_path):
    """Among all reserved steps: those that an earlier process lost are passed over, with their groups' turns."""
    query = banded_row(4)
    ledger = on_disk(tmp_path, target_epsilon=1e6, accountant="rdp")
    assert [ledger.take_step(query, reserve_steps=5) for _ in range(7)] == list(range(7))
    resumed = on_disk(tmp_path, target_epsilon=1e6, accountant="rdp")
    assert [resumed.take_step(query, reserve_steps=3) for _ in range(4)] == [10, 11, 12, 13]
    assert [each["first_step"] for each in resumed.rows] == [0, 5, 10, 13]
    assert resumed.epsilon() == pytest.approx(rdp((2.0, 0.2, 4)), abs=1e-3)


def test_other_rows_of_a_release_take_no_turns():
    ledger, query = in_memory(), banded_row(4)
    ledger.reserve(replace(query, steps=6))
    ledger.reserve(row(30.0, 0.1, 9))
    ledger.reserve(replace(query, steps=3))
    assert [each.get("first_step") for each in ledger.rows] == [0, None, 6]
    assert "bands" not in ledger.rows[1], "rows of other mechanisms keep their bytes"


@pytest.mark.parametrize(
    "other",
    [
        banded_row(8), banded_row(4, sigma=3.0), banded_row(4, sample_rate=0.01), banded_row(4, seed=8),
        banded_row(4, clip_norm=2.0),
    ],
    ids=["bands", "noise", "rate", "groups", "clip norm"],
)  # fmt: skip
def test_a_second_stream_is_refused(other):
    ledger = in_memory()
    ledger.take_step(banded_row(4), reserve_steps=3)
    with pytest.raises(UsageError, match="another mechanism"):
        ledger.take_step(other)
    assert len(ledger.rows) == 1 and ledger.take_step(banded_row(4)) == 1


def open_release(path, name, **more):
    settings = {"target_epsilon": 1e6, "target_delta": 1e-5, "num_images": 5000, "dataset_id": "scans", **more}
    return PrivacyLedger(path, release_id=name, **settings)


def test_releases_of_one_data_set_are_counted_one_by_one(tmp_path):
    """Their groups are other groups: 5 and 5 steps of 4 groups are 2 and 2 turns, not 3."""
    path = tmp_path / "scans.jsonl"
    for number, name in enumerate(("a", "b")):
        ledger = open_release(path, name, dataset_epsilon=None)
        ledger.reserve(replace(banded_row(4, seed=number), steps=5))
        assert ledger.rows[0]["first_step"] == 0
        ledger.close()
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    accountant.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(2.0)), 4)
    assert ledger.epsilon_of_all_releases() == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-9)
    spent = ledger.epsilon_of_all_releases()
    third = open_release(path, "c", dataset_epsilon=1.001 * spent)
    assert third.epsilon_of_all_releases() == spent, "that of two others, each by itself"
    with pytest.raises(BudgetExceeded, match="--dataset_epsilon"):
        third.reserve(replace(banded_row(4), steps=5))


EDITS = {
    "a gap": lambda line: line.update(first_step=line["first_step"] + 1),
    "an overlap": lambda line: line.update(first_step=line["first_step"] - 1),
    "no place": lambda line: line.pop("first_step"),
    "other bands": lambda line: line.update(bands=2),
    "no bands": lambda line: line.pop("bands"),
    "other groups": lambda line: line["query"].update(group_key="0" * 32),
    "a column that is too long": lambda line: line["query"].update(coefficients=[1.0, 0.5, 0.4, 0.3]),
    "words": lambda line: line["query"].update(coefficients="many"),
    "another rate": lambda line: line["query"].update(sample_rate=0.01),
    "a plain row with a place": lambda line: line.update(mechanism="poisson_gaussian"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_says_otherwise_is_refused(tmp_path, edit, monkeypatch):
    """Although its chain was computed anew."""
    ledger = on_disk(tmp_path, target_epsilon=1e6, accountant="rdp")
    for _ in range(2):
        ledger.reserve(replace(banded_row(4), steps=5))
    changed = lines(ledger)
    EDITS[edit](changed[2])
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    monkeypatch.setattr("diffusers_dp.accounting.ledger_file._link", lambda chain, line: line["chain"])
    with pytest.raises(IntegrityError, match="row of a ledger|contradicts"):
        on_disk(tmp_path, target_epsilon=1e6, accountant="rdp")


C = bands_of(4).coefficients
WRONG = {
    "one band": (1.0,),
    "a norm above 1": tuple(1.001 * value for value in C),
    "not finite": (*C[:3], math.nan),
    "no inverse": (0.0, *C[1:]),
}


@pytest.mark.parametrize("coefficients", WRONG.values(), ids=WRONG)
def test_bands_that_prove_nothing_are_refused(coefficients):
    with pytest.raises(UsageError, match="must lie in"):
        bands_of(4, rate=0.3)
    with pytest.raises(UsageError):
        Banded(noise_multiplier=2.0, rate=0.05, coefficients=coefficients, group_key="0" * 32)


@pytest.mark.parametrize(
    "groups", [{"group_key": ""}, {"group_key": "0"}, {"group_key": "G" * 32}, {"group_key": None},
    {"group_key": "0" * 32, "ids": "name"}],
)  # fmt: skip
def test_groups_that_nobody_can_form_are_refused(groups):
    with pytest.raises(UsageError):
        Banded(noise_multiplier=2.0, rate=0.05, coefficients=C, **groups)
