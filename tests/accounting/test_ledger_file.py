# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A ledger file: releases of one data set that add up, the chain that shows an edited line, and who may write."""

import json
import multiprocessing
import os

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_file import bounds_of, other_releases
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled


DELTA = 1e-5


def row(sigma, q=1.0, steps=1, name="stage"):
    return LedgerRow(name, sampled(q, sigma), steps)


def open_ledger(path, release, **changes):
    settings = {"target_epsilon": 1.0, "target_delta": DELTA, "num_images": 55000, "dataset_id": "scans"}
    return PrivacyLedger(path, release_id=release, **{**settings, **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledgers" / "scans.jsonl"


def pld(*queries, delta=DELTA):
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for sigma, q, steps in queries:
        event = dp.GaussianDpEvent(sigma) if q == 1 else dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma))
        accountant.compose(event, steps)
    return accountant.get_epsilon(delta)


def test_releases_of_one_data_set_add_up_and_each_has_a_budget_of_its_own(path):
    first = open_ledger(path, "a")
    first.reserve(row(6.0))
    first.close()
    second = open_ledger(path, "b", dataset_epsilon=2.0)
    assert second.epsilon() == 0, "what another release spent is no part of this one"
    second.reserve(row(8.0, 0.1, 20))
    assert second.epsilon() == pytest.approx(pld((8.0, 0.1, 20)), abs=1e-6)
    assert second.epsilon_of_all_releases() == pytest.approx(pld((6.0, 1, 1), (8.0, 0.1, 20)), abs=1e-6)
    (earlier,) = second.prior_releases
    assert earlier["events"][0]["noise_multiplier"] == 6.0 and earlier["num_images"] == 55000
    assert "state" not in earlier["events"][0] and "release_id" not in json.dumps(earlier)


def test_steps_that_a_crash_lost_stay_counted(path):
    lost = open_ledger(path, "a")
    lost.executed(lost.reserve(row(12.0, 0.5, 5)), 2)
    lost.reserve(row(12.0, 0.5, 5))
    spent = lost.epsilon()
    lost.close()
    assert open_ledger(path, "a").epsilon() == spent == pytest.approx(pld((12.0, 0.5, 10)), abs=1e-6)


def test_the_sum_over_releases_is_gated_and_calibrated_to(path):
    first = open_ledger(path, "a")
    first.reserve(row(5.0))
    first.close()
    spent = pld((5.0, 1, 1))
    second = open_ledger(path, "b", dataset_epsilon=1.1 * spent)
    with pytest.raises(BudgetExceeded, match="--dataset_epsilon"):
        second.reserve(row(5.0))
    assert second.rows == [] and second.epsilon_of_all_releases() == pytest.approx(spent, abs=1e-6)
    sigma = second.calibrate(sampled(0.1), 50)
    free = open_in_memory_like(second).calibrate(sampled(0.1), 50)
    assert sigma > 2 * free, "the data set leaves less than the release may spend"
    assert pld((5.0, 1, 1), (sigma, 0.1, 50)) <= 1.1 * spent
    assert pld((5.0, 1, 1), (sigma * 0.999, 0.1, 50)) > 1.1 * spent
    second.reserve(row(sigma, 0.1, 50))
    assert second.affordable_steps(row(sigma, 0.1, 50), 50) == 0


def open_in_memory_like(ledger):
    return PrivacyLedger(
        None, target_epsilon=ledger.target_epsilon, target_delta=ledger.target_delta, num_images=ledger.num_images
    )


def test_a_bound_that_one_release_was_given_holds_for_all(path):
    first = open_ledger(path, "a", dataset_epsilon=0.9)
    first.reserve(row(5.0))
    first.close()
    second = open_ledger(path, "b")
    assert second.dataset_epsilon == 0.9
    with pytest.raises(BudgetExceeded, match="--dataset_epsilon 0.9"):
        second.reserve(row(5.0))
    second.close()
    third = open_ledger(path, "c", dataset_epsilon=5.0)
    assert third.dataset_epsilon == 0.9


def test_a_small_bound_is_gated_on_the_grid_that_the_receipt_states(path):
    ledger = open_ledger(path, "a", dataset_epsilon=0.15)
    sigma = ledger.calibrate(sampled(0.01), 20_000)
    ledger.reserve(row(sigma, 0.01, 20_000))
    assert 0.149 < ledger.epsilon_of_all_releases() <= 0.15 + 1e-9


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path, kind):
    if kind == "file":
        (tmp_path / "ledgers").write_text("")
    else:
        (tmp_path / "ledgers" / "scans.jsonl").mkdir(parents=True)
    with pytest.raises(UsageError, match="--ledger_dir"):
        open_ledger(tmp_path / "ledgers" / "scans.jsonl", "a")


def test_a_linked_ledger_stays_one(path, tmp_path):
    open_ledger(path, "a").close()
    (tmp_path / "link.jsonl").symlink_to(path)
    ledger = PrivacyLedger(
        tmp_path / "link.jsonl",
        target_epsilon=1.0,
        target_delta=DELTA,
        num_images=55000,
        dataset_id="scans",
        release_id="a",
    )
    ledger.reserve(row(5.0))
    assert (tmp_path / "link.jsonl").is_symlink() and len(path.read_text().splitlines()) == 2


def test_planning_sees_other_releases_and_changes_nothing(path):
    first = open_ledger(path, "a")
    first.reserve(row(5.0))
    first.close()
    before = path.read_bytes()
    others = other_releases(path, dataset_id="scans", release_id="b")
    plan = open_ledger(None, "b", dataset_epsilon=2.0, others=others)
    plan.reserve(row(6.0))
    assert plan.epsilon_of_all_releases() == pytest.approx(pld((5.0, 1, 1), (6.0, 1, 1)), abs=1e-6)
    assert path.read_bytes() == before
    assert other_releases(path, dataset_id="scans", release_id="a") == []
    assert other_releases(path.with_name("none.jsonl"), dataset_id="none", release_id="a") == []


def test_a_release_goes_on_behind_another_one(path):
    for release, sigma in (("a", 9.0), ("b", 8.0), ("a", 7.0), ("b", 6.0)):
        ledger = open_ledger(path, release)
        ledger.executed(ledger.reserve(row(sigma)), 1)
        ledger.close()
    ledger = open_ledger(path, "a")
    assert [entry["noise_multiplier"] for entry in ledger.rows] == [9.0, 7.0]
    assert [entry["id"] for entry in ledger.rows] == [0, 1]
    (other,) = ledger.prior_releases
    assert [event["noise_multiplier"] for event in other["events"]] == [8.0, 6.0]


def test_one_process_at_a_time_writes_a_data_set_s_ledger(path):
    ledger = open_ledger(path, "a")
    with pytest.raises(UsageError, match="in use by process"):
        open_ledger(path, "b")
    ledger.close()
    open_ledger(path, "b").close()


def test_the_lock_ends_with_its_process(path):
    def reserve_and_die():
        open_ledger(path, "a").reserve(row(5.0))
        os._exit(9)

    process = multiprocessing.get_context("fork").Process(target=reserve_and_die)
    process.start()
    process.join()
    assert process.exitcode == 9
    ledger = open_ledger(path, "b")
    assert len(ledger.prior_releases) == 1, "a release that crashed has spent what it reserved"


def test_each_foreign_ledger_has_its_own_sentence(path):
    open_ledger(path, "a").reserve(row(5.0))
    renamed = path.with_name("other.jsonl")
    renamed.write_bytes(path.read_bytes())
    with pytest.raises(IntegrityError, match="ledger of data set 'scans', not of data set 'other'"):
        open_ledger(renamed, "b", dataset_id="other")
    copied = path.with_name("run.jsonl")
    copied.write_bytes(path.read_bytes())
    with pytest.raises(IntegrityError, match="--dataset_id"):
        PrivacyLedger(copied, target_epsilon=1.0, target_delta=DELTA, num_images=55000)
    plain = PrivacyLedger(path.with_name("plain.jsonl"), target_epsilon=1.0, target_delta=DELTA, num_images=55000)
    plain.reserve(row(5.0))
    with pytest.raises(IntegrityError, match="one run alone"):
        open_ledger(plain.path, "b", dataset_id="plain")


def test_releases_that_protect_other_units_cannot_be_added_up(path):
    ledger = open_ledger(path, "a")
    ledger.reserve(row(5.0))
    ledger.close()
    with pytest.raises(IntegrityError, match="protects each image, and this one each patient_id"):
        open_ledger(path, "b", unit_of_privacy="patient_id")


@pytest.mark.parametrize("dataset_id", ("", "a/b", "..", ".hidden", "a b"))
def test_a_data_set_s_name_is_a_file_s_name(dataset_id, tmp_path):
    with pytest.raises(UsageError, match="--dataset_id"):
        open_ledger(tmp_path / "x.jsonl", "a", dataset_id=dataset_id)


@pytest.mark.parametrize("limit", (0, -1.0, float("nan"), float("inf")))
def test_a_data_set_s_budget_is_a_number_above_0(limit, path):
    with pytest.raises(UsageError, match="--dataset_epsilon"):
        open_ledger(path, "a", dataset_epsilon=limit)


def edits(lines):
    """Every line with one fact changed, as an editor would who wants epsilon smaller or a release gone."""
    for number, line in enumerate(lines):
        entry = json.loads(line)
        changes = {"noise_multiplier": 50.0, "steps_reserved": 1, "stage": "another", "sampling_probability": 0.01}
        if entry.get("kind") == "header":
            changes = {"target_delta": 1e-4, "num_images": 60000}
        for key, value in changes.items():
            if entry[key] != value:
                yield (
                    f"{key} of line {number}",
                    [*lines[:number], json.dumps({**entry, key: value}), *lines[number + 1 :]],
                )
        if number < len(lines) - 1:  # of the very last line nothing behind tells
            yield f"line {number} gone", [*lines[:number], *lines[number + 1 :]]
            yield f"line {number} moved", [*lines[:number], lines[number + 1], line, *lines[number + 2 :]]


def test_an_edited_line_is_noticed(path):
    for release in ("a", "b"):
        ledger = open_ledger(path, release)
        ledger.reserve(row(9.0, 0.1, 4, name="first"))
        ledger.executed(ledger.reserve(row(9.0, 0.2, 5, name="second")), 3)
        ledger.close()
    text = path.read_text()
    lines = text.splitlines()
    assert len(lines) == 6
    for edit, edited in edits(lines):
        path.write_text("\n".join(edited) + "\n")
        with pytest.raises(IntegrityError, match="edited|contradicts|not a row"):
            open_ledger(path, "c")
            pytest.fail(edit)
    path.write_text(text)
    assert len(open_ledger(path, "c").prior_releases) == 2


# Bounds that were promised at different deltas.


def promised(path, epsilon, delta, sigma=6.0):
    """The first release of the data set: one query, and a bound on the sum at its own delta."""
    ledger = open_ledger(path, "a", target_delta=delta, target_epsilon=epsilon, dataset_epsilon=epsilon)
    ledger.reserve(row(sigma))
    ledger.close()


@pytest.mark.parametrize("own", [None, 5.0, 0.9])
def test_a_bound_holds_at_the_delta_at_which_it_was_promised(path, own):
    """A later release has a larger delta, at which everything is cheaper, and may have a bound of its own there."""
    promised(path, 1.5, 1e-6)
    second = open_ledger(path, "b", accountant="rdp", target_delta=1e-2, target_epsilon=3.0, dataset_epsilon=own)
    sigma = second.calibrate(sampled(1.0), 3)
    at_both = [((1.5, 1e-6), (6.0, 1, 1), (sigma, 1, 3))]
    at_both += [((own, 1e-2), *at_both[0][1:])] if own else []
    assert all(pld(*queries, delta=delta) <= epsilon for (epsilon, delta), *queries in at_both)
    less = [pld(*queries[:-1], (sigma * 0.999, 1, 3), delta=delta) - epsilon for (epsilon, delta), *queries in at_both]
    assert max(less) > 0, "the smallest noise that does"
    assert second.affordable_steps(row(sigma), 5) == 3
    epsilon, delta = max(at_both, key=lambda pair: pld(*pair[1:], delta=pair[0][1]) / pair[0][0])[0]
    with pytest.raises(BudgetExceeded, match=rf"at delta {delta:g}, over --dataset_epsilon {epsilon:g}"):
        second.reserve(row(sigma, steps=4))
    assert second.rows == []
    second.reserve(row(sigma, steps=3))
    assert second.epsilon_of_all_releases(delta=1e-6) == pytest.approx(pld(*at_both[0][1:], delta=1e-6), abs=1e-6)


def test_a_bound_that_is_used_up_at_its_own_delta_is_named(path):
    promised(path, 1.0, 1e-6, sigma=5.5)
    second = open_ledger(path, "b", accountant="rdp", target_delta=1e-2, target_epsilon=3.0)
    with pytest.raises(BudgetExceeded, match="at delta 1e-06, over --dataset_epsilon 1, promised to another release"):
        second.reserve(row(6.0))
    second.close()
    third = open_ledger(path, "c", accountant="rdp", target_delta=1e-2, target_epsilon=3.0)
    third.reserve(row(50.0))
    with pytest.raises(
        UsageError, match=r"already cost epsilon 1\.\d+ at delta 1e-06, .*--dataset_epsilon 1 at delta 1e-06"
    ):
        third.set_aside.append(row(6.0))
        third.calibrate(sampled(1.0), 3)


def test_a_bound_at_a_larger_delta_is_not_imposed_at_a_smaller_one(path):
    """It was promised at 1e-2 only, where the sum is well below it."""
    promised(path, 1.0, 1e-2)
    second = open_ledger(path, "b", target_delta=1e-6, target_epsilon=8.0)
    assert second.dataset_epsilon is None and second.dataset_bounds == [(1.0, 1e-2)]
    second.reserve(row(5.0))
    assert second.epsilon_of_all_releases() > 1 > second.epsilon_of_all_releases(delta=1e-2)
    with pytest.raises(BudgetExceeded, match="at delta 0.01, over --dataset_epsilon 1"):
        second.reserve(row(2.0))


BOUNDS = st.tuples(st.none() | st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from([1e-7, 1e-6, 1e-5, 1e-2]))


@given(st.lists(BOUNDS, min_size=1, max_size=8))
def test_bounds_that_others_imply_are_left_out_and_no_others(pairs):
    kept = bounds_of([{"dataset_epsilon": epsilon, "target_delta": delta} for epsilon, delta in pairs])
    assert set(kept) <= set(pairs)
    for epsilon, delta in pairs:
        assert epsilon is None or any(bound.epsilon <= epsilon and bound.delta <= delta for bound in kept)
    for one in kept:
        implied = [other for other in kept if other.epsilon <= one.epsilon and other.delta <= one.delta]
        assert implied == [one]


@pytest.mark.parametrize("named", [True, False])
def test_a_closed_ledger_writes_no_row(tmp_path, named):
    """It gave up its lock: a row of its own, or counts as it knew them, could replace what another release wrote."""
    facts = {"dataset_id": "scans", "release_id": "0" * 16} if named else {}
    ledger = PrivacyLedger(
        tmp_path / "scans.jsonl", target_epsilon=100.0, target_delta=1e-5, num_images=100, accountant="rdp", **facts
    )
    reservation = ledger.reserve(LedgerRow("first", sampled(1.0, 9.0)))
    ledger.close()
    before = (tmp_path / "scans.jsonl").read_bytes()
    for write in (
        lambda: ledger.reserve(LedgerRow("second", sampled(1.0, 9.0))),
        lambda: ledger.executed(reservation, 1),
    ):
        with pytest.raises(ValueError, match="closed"):
            write()
    assert (tmp_path / "scans.jsonl").read_bytes() == before and ledger.epsilon() > 0
