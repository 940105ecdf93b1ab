# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Steps in which each unit has exactly k of t turns: what they cost, and who goes on with whose turns."""

import json
from dataclasses import replace

import PLD_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.verify import allocation_work, compose_allocation
from support.ledgers import lines, on_disk, row
from support.turns import allocation_of, sampled_deltas, turns_row


def in_memory(target=1e6, **more):
    return PrivacyLedger(None, target_epsilon=target, target_delta=1e-5, num_images=5000, **more)


def counted(sigma, turns, participations, loss_step=0.1, number=1):
    accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    compose_allocation(accountant, sigma, turns, participations, loss_step, number)
    return accountant


@pytest.mark.parametrize(("sigma", "turns", "participations", "epsilon"), [
    (1.0, 6, 2, 1.0), (1.0, 7, 3, 2.0), (2.0, 5, 1, 0.2), (0.8, 12, 5, 4.0), (1.0, 6, 1, 1.2),
])  # fmt: skip
def test_the_bound_holds_in_both_directions(sigma, turns, participations, epsilon):
    """Against draws from the mechanism itself, whose likelihood ratio is known; and it is not far above."""
    pld = counted(sigma, turns, participations)._pld
    bounds = [
        type(pld)(pmf, pmf).get_delta_for_epsilon(epsilon) for pmf in (pld._pmf_remove, pld._pmf_add)
    ]  # fmt: skip
    for bound, (delta, error) in zip(bounds, sampled_deltas(sigma, turns, participations, epsilon), strict=True):
        assert delta > 20 * error, "the estimate says something"
        assert delta - 4 * error <= bound <= 1.5 * delta


def test_the_bound_lies_just_above_the_lower_one():
    params = PLD_accounting.PrivacyParams(sigma=0.8, num_steps=12, num_selected=4, delta=1e-5)
    config = PLD_accounting.AllocationSchemeConfig(loss_discretization=0.1)
    lower = PLD_accounting.gaussian_allocation_epsilon_configurable(
        params=params, config=config, bound_type=PLD_accounting.BoundType.IS_DOMINATED
    )
    assert lower <= counted(0.8, 12, 4).get_epsilon(1e-5) <= 1.01 * lower


def test_what_falls_into_one_cell_adds_up():
    """Where the grid of all questions is coarser than that of the turns, as at a huge epsilon."""
    accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, 0.05)
    compose_allocation(accountant, 1.0, 6, 2, 0.1, 1)
    fine = counted(1.0, 6, 2).get_epsilon(1e-5)
    assert fine <= accountant.get_epsilon(1e-5) < fine + 0.06


def test_a_coarser_grid_says_no_less():
    fine, *coarser = (counted(1.0, 6, 2, step).get_epsilon(1e-5) for step in (0.1, 0.2, 0.4))
    assert fine <= coarser[0] + 1e-4 and coarser[0] <= coarser[1] + 1e-4 < 1.05 * fine


def test_it_composes_with_other_questions_and_itself():
    """More than either alone, less than their sum; two releases are two allocations."""
    ledger, question = in_memory(), turns_row()
    ledger.reserve(row(3.0, name="query"))
    alone = ledger.epsilon()
    ledger.reserve(question)
    turns = counted(2.0, 6, 2, 0.4)
    assert max(alone, turns.get_epsilon(1e-5)) < ledger.epsilon() < alone + turns.get_epsilon(1e-5)
    twice = counted(2.0, 6, 2, 0.4)
    compose_allocation(twice, 2.0, 6, 2, 0.4, 1)
    assert counted(2.0, 6, 2, 0.4, number=2).get_epsilon(1e-5) == pytest.approx(twice.get_epsilon(1e-5), abs=1e-6)


@pytest.mark.parametrize("bands", [1, 4])
def test_the_first_step_costs_as_much_as_all(bands):
    ledger, question = in_memory(), turns_row(bands=bands)
    assert ledger.take_step(question, reserve_steps=2) == 0
    first = ledger.epsilon()
    assert first == pytest.approx(counted(2.0, 6, 2, 0.4).get_epsilon(1e-5), abs=1e-6)
    rest = [ledger.take_step(question, reserve_steps=2) for _ in range(6 * bands - 1)]
    assert rest == list(range(1, 6 * bands))
    assert ledger.epsilon() == first
    assert ledger.epsilon_by_stage() == [("dp_sgd", first)] and ledger.budget_shares() == {"dp_sgd": pytest.approx(1)}
    with pytest.raises(BudgetExceeded, match=f"after {6 * bands} are more than the {6 * bands} in which units"):
        ledger.take_step(question)


def test_lost_steps_shorten_what_is_left(tmp_path):
    """Another start goes on behind them."""
    question = turns_row()
    on_disk(tmp_path, target_epsilon=9.0).take_step(question, reserve_steps=5)
    ledger = on_disk(tmp_path, target_epsilon=9.0)
    assert ledger.affordable_steps(question, 24) == 19
    assert ledger.take_step(question, reserve_steps=2) == 5
    with pytest.raises(BudgetExceeded):
        ledger.reserve(replace(question, steps=18))


def test_other_turns_noise_or_keys_are_refused():
    ledger = in_memory()
    ledger.reserve(turns_row())
    for other in (
        turns_row(sigma=2.1), turns_row(turns=12, participations=4), turns_row(key=bytes(32)), turns_row(bands=1),
        turns_row(loss_step=0.2),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="other bands, groups, turns or noise"):
            ledger.reserve(other)
    assert len(ledger.rows) == 1


def test_releases_of_a_data_set_have_keys_of_their_own(tmp_path):
    """By one key a unit's turns of one release would tell of those of the other; their costs would not add up."""
    facts = {"target_delta": 1e-5, "num_images": 5000, "target_epsilon": 9.0, "dataset_id": "scans"}
    first = PrivacyLedger(tmp_path / "scans.jsonl", release_id="a", **facts)
    first.reserve(turns_row())
    first.close()
    second = PrivacyLedger(tmp_path / "scans.jsonl", release_id="b", **facts)
    with pytest.raises(UsageError, match="by this key"):
        second.reserve(turns_row())
    second.reserve(turns_row(key=bytes(32)))
    both = counted(2.0, 6, 2, 0.4, number=2).get_epsilon(1e-5)
    assert second.epsilon_of_all_releases() == pytest.approx(both, abs=1e-6)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_only_pld_counts_turns(accountant):
    ledger = in_memory(accountant=accountant)
    with pytest.raises(UsageError, match="--accountant pld"):
        ledger.reserve(turns_row())
    assert ledger.rows == []


def test_noise_that_a_grid_cannot_tell_is_refused():
    with pytest.raises(UsageError, match="saves nothing: raise --target_epsilon"):
        in_memory().reserve(turns_row(sigma=1e6))


def test_noise_is_calibrated():
    """To just below the target, with less noise than coins need."""
    ledger = in_memory(target=8.0)
    ledger.reserve(row(3.0, name="query"))
    allocation = allocation_of(12, 3)
    sigma = ledger.calibrate(allocation.rate, 12 * 16, bands=16, allocation=allocation)
    question = turns_row(12, 3, sigma=sigma)
    assert 7.99 < ledger.epsilon(extra=[question]) <= 8
    assert sigma < 0.95 * ledger.calibrate(allocation.rate, 12 * 16, bands=16)


EDITS = {
    "turns that are no number": lambda line: line["query"].update(turns=6.0),
    "one turn": lambda line: line["query"].update(turns=1),
    "all turns": lambda line: line["query"].update(participations=6),
    "no turn": lambda line: line["query"].update(participations=0),
    "more turns": lambda line: line["query"].update(turns=7),
    "no key": lambda line: line["query"].update(participation_key_sha256="7"),
    "no ids": lambda line: line["query"].pop("ids"),
    "an unknown grid": lambda line: line["query"].update(loss_step=0.3),
    "whole numbers": lambda line: line["query"].update(grid=2**18),
    "another key": lambda line: line["query"].update(participation_key_sha256="0" * 64),
    "coins": lambda line: line.update(mechanism="banded_gaussian"),
    "no place": lambda line: line.pop("first_step"),
    "a gap": lambda line: line.update(first_step=line["first_step"] + 1),
    "steps without turns": lambda line: line.update(steps_reserved=30),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_says_otherwise_is_refused(tmp_path, edit, monkeypatch):
    """Although its chain was computed anew."""
    ledger = on_disk(tmp_path, target_epsilon=9.0)
    for _ in range(2):
        ledger.reserve(replace(turns_row(), steps=5))
    changed = lines(ledger)
    EDITS[edit](changed[2])
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    monkeypatch.setattr("diffusers_dp.accounting.ledger_file._link", lambda chain, line: line["chain"])
    with pytest.raises(IntegrityError, match="row of a ledger|contradicts"):
        on_disk(tmp_path, target_epsilon=9.0)


def test_work_grows_with_what_counting_takes():
    """By this number the plan chooses its grid, and the verifier refuses to compute for hours."""
    assert allocation_work(0.74, 35, 5, 0.1) < 6e6 < allocation_work(0.59, 590, 10, 0.1)
    assert allocation_work(0.74, 35, 5, 0.4) < allocation_work(0.74, 35, 5, 0.1)
