# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger: what it counts, against an accountant written down here again, what it grants, and what its file
tells."""

import math

import pytest

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from support.ledgers import independent_epsilon, lines, on_disk, row


FETA_DELTA = 1.6657508770018431e-6  # 1 / (N ln N), N = 55000
# (noise multiplier, sampling probability, steps) as published.
FETA_PRO_1 = [(20, 6000 / 55000, 5), (26.6, 1, 1), (14.84375, 1 / 14, 2100)]


def in_memory(history=(), *, target=1e3, delta=1e-5, accountant="pld"):
    ledger = PrivacyLedger(None, target_epsilon=target, target_delta=delta, num_images=55000, accountant=accountant)
    for number, (sigma, q, steps) in enumerate(history):
        ledger.reserve(row(sigma, q, steps, name=f"stage_{number}"))
    return ledger


# Calibration.


def test_calibrated_steps_are_granted_and_no_more():
    ledger = in_memory([(26.6, 1, 1)], target=1.0, delta=FETA_DELTA)
    sigma = ledger.calibrate(sampled(1 / 14), 2100)
    assert 0.999 < ledger.epsilon(extra=[row(sigma, 1 / 14, 2100)]) <= 1
    ledger.reserve(row(sigma, 1 / 14, 2100))
    with pytest.raises(BudgetExceeded):
        ledger.reserve(row(sigma, 1 / 14, 20))
    assert in_memory(target=10.0).calibrate(sampled(0.05), 100, at_least=5) == 5


def test_calibration_says_what_is_missing_when_nothing_is_left():
    ledger = in_memory([(3.0, 1, 1)], target=2.0)
    spent = ledger.epsilon()
    ledger.target_epsilon = 1.0
    with pytest.raises(UsageError) as error:
        ledger.calibrate(sampled(0.1), 100)
    assert f"{spent:.6g}" in str(error.value) and f"{spent - 1:.6g}" in str(error.value)


@pytest.mark.parametrize("target", [0.5, 1.0, 10.0])
def test_a_share_is_a_share_of_the_composed_budget(target):
    ledger = in_memory(target=target, delta=FETA_DELTA, accountant="rdp")
    ledger.reserve(row(ledger.calibrate_gaussian(0.03), name="frequency"))
    ledger.reserve(row(ledger.calibrate_gaussian(0.05, sampled(0.1), 5), 0.1, 5, name="central"))
    ledger.reserve(row(ledger.calibrate(sampled(1 / 14), 2100), 1 / 14, 2100, name="dpsgd"))
    shares = ledger.budget_shares()
    assert shares["frequency"] == pytest.approx(0.03, rel=0.05)
    assert shares["central"] == pytest.approx(0.05, rel=0.05)
    assert sum(shares.values()) == pytest.approx(1)


def test_shares_and_stages_of_a_published_run():
    ledger = in_memory(FETA_PRO_1, delta=FETA_DELTA, accountant="rdp")
    shares = ledger.budget_shares()
    assert [round(share, 4) for share in shares.values()] == [0.0030, 0.0279, 0.9691]  # order 21
    stages = ledger.epsilon_by_stage()
    assert [name for name, _ in stages] == ["stage_0", "stage_1", "stage_2"]
    assert stages[0][1] == in_memory(FETA_PRO_1[:1], delta=FETA_DELTA).epsilon("rdp") < stages[1][1]
    assert stages[2][1] == ledger.epsilon()
    assert in_memory().budget_shares() == {} and in_memory().epsilon_by_stage() == [] and in_memory().epsilon() == 0


# The gate.


def test_the_gate_refuses_and_writes_nothing(tmp_path):
    ledger = on_disk(tmp_path)
    ledger.reserve(row(5.0, name="central_images"))
    before = ledger.path.read_bytes(), ledger.epsilon()
    with pytest.raises(BudgetExceeded, match="frequency"):
        ledger.reserve(row(3.0, name="frequency"))
    assert (ledger.path.read_bytes(), ledger.epsilon()) == before
    ledger.reserve(row(30.0, name="frequency"))  # what still fits is still granted
    assert 0.7 < ledger.epsilon() <= 1.0


@pytest.mark.parametrize("other", [row(4.0, 1.0, 50), row(4.0, 0.02, 5_000), row(3.0, 0.01, 9_000)])
def test_what_was_found_affordable_is_no_other_query(other):
    """A total that was checked once needs no further numbers: of that noise, at that sample rate."""
    ledger = in_memory(target=1.0, accountant="rdp")
    n = ledger.affordable_steps(row(4.0, 0.01), 20_000)
    assert n > 9_000 and ledger.epsilon(extra=[other]) > 1
    with pytest.raises(BudgetExceeded):
        ledger.reserve(other)
    ledger.reserve(row(4.0, 0.01, n))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_affordable_steps_is_the_largest_number_that_fits(accountant):
    ledger = in_memory([(26.6, 1, 1)], target=1.0, accountant=accountant)
    query = row(12.0, 0.1)
    n = ledger.affordable_steps(query, 5000)
    assert ledger.epsilon(extra=[row(12.0, 0.1, n)]) <= 1.0 < ledger.epsilon(extra=[row(12.0, 0.1, n + 1)])
    assert ledger.affordable_steps(query, n // 2) == n // 2 and ledger.affordable_steps(query, 1) == 1
    assert ledger.affordable_steps(row(0.5), 3) == 0 and ledger.affordable_steps(query, 0) == 0
    ledger.reserve(row(12.0, 0.1, n))
    assert ledger.affordable_steps(query, 5000) == 0
    with pytest.raises(BudgetExceeded):
        ledger.reserve(query)


def test_a_hopeless_query_is_refused_in_good_time():
    for hopeless in (row(0.01, 0.1, 100_000), row(1e-3), row(0.05, 1.0, 1000)):
        with pytest.raises(BudgetExceeded):
            in_memory(target=1.0).reserve(hopeless)


@pytest.mark.parametrize(
    "wrong",
    [{"noise_multiplier": bad} for bad in (0, -1.0, math.nan, math.inf, "1")]
    + [{"sampling_probability": bad} for bad in (0.0, 1.5, -0.1, math.nan)]
    + [{"steps_reserved": bad} for bad in (0, -3, 1.5, math.nan)]
    + [{"mechanism": "laplace"}, {"mechanism": "gaussian"}, {"sampling_probability": 1.0}]
    + [{"bands": 4}, {"query": {"sensitivity": 0.5, "clip_norm": 1.0}}, {"query": {"grid": 1}}],
)
def test_a_wrong_row_is_refused(wrong):
    right = {**row(1.0, 0.5).entry, "steps_reserved": 1}
    assert LedgerRow.read(right) == row(1.0, 0.5)
    with pytest.raises(UsageError):
        LedgerRow.read({**right, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [{"target_epsilon": bad} for bad in (0, -1, math.nan, math.inf)]
    + [{"target_delta": bad} for bad in (0, 1, math.nan)]
    + [{"num_images": bad} for bad in (0, 1.5)]
    + [{"accountant": "gdp"}, {"public_facts": {"labels": {1, 2}}}],
)
def test_a_wrong_budget_is_refused(tmp_path, wrong):
    with pytest.raises(UsageError):
        on_disk(tmp_path, **wrong)


# The file.


def test_the_file_tells_everything(tmp_path):
    ledger = on_disk(tmp_path)
    assert not ledger.path.exists(), "planning writes nothing"
    ledger.reserve(row(26.6, name="frequency", facts={"clip_norm": 1.0}))
    ledger.reserve(row(20.0, 0.1, 5, name="central_images", by_label=True))
    ledger.reserve(row(15.0, 1 / 14, 1500, name="dpsgd"))
    ledger.executed(1, 5)
    ledger.executed(2, 700)  # a run that stops early: the rest stays spent
    header, *events = lines(ledger)
    chains = [line.pop("chain") for line in (header, *events)]
    assert len(set(chains)) == 4, "each line is tied to all before it"
    assert events == ledger.rows
    assert [event["state"] for event in events] == ["reserved", "executed", "executed"]
    assert [event["steps_executed"] for event in events] == [0, 5, 700]
    assert ledger.epsilon() == pytest.approx(independent_epsilon(ledger.path), abs=1e-6)
    ledger.rows[0]["query"]["sensitivity"] = 2.0
    assert ledger.rows == events, "rows are copies"


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("target_epsilon", {"target_epsilon": 2.0}),
        ("target_delta", {"target_delta": 1e-6}),
        ("num_images", {"num_images": 54999}),
        ("accountant", {"accountant": "rdp"}),
        ("public_facts.labels", {"public_facts": {"labels": ["a"]}}),
        ("public_facts.labels", {"public_facts": None}),
        ("public_facts.shape", {"public_facts": {"labels": ["a", "b"], "shape": [1, 28, 28]}}),
    ],
)
def test_another_budget_is_refused_by_name(tmp_path, field, other):
    on_disk(tmp_path).reserve(row(30.0))
    on_disk(tmp_path)
    with pytest.raises(IntegrityError, match=field):
        on_disk(tmp_path, **other)


# Steps.


def test_steps_are_drawn_from_blocks(tmp_path):
    ledger = on_disk(tmp_path)
    query = row(30.0, 0.1, name="dpsgd", facts={"clip_norm": 1.0})
    taken = [ledger.take_step(query, reserve_steps=3) for _ in range(7)]
    assert taken == [0, 1, 2, 0, 1, 2, 0]
    assert [event["steps_reserved"] for event in lines(ledger)[1:]] == [3, 3, 3]
    assert [event["steps_executed"] for event in lines(ledger)[1:]] == [3, 3, 0]
    assert [event["state"] for event in lines(ledger)[1:]] == ["executed", "executed", "reserved"]
    ledger.flush_executed()
    assert lines(ledger)[3]["steps_executed"] == 1 and lines(ledger)[3]["state"] == "reserved"
    for other in (
        row(31.0, 0.1, name="dpsgd", facts={"clip_norm": 1.0}),
        row(30.0, 0.2, name="dpsgd", facts={"clip_norm": 1.0}),
        row(30.0, 0.1, name="dpsgd", facts={"clip_norm": 2.0}),
        row(30.0, 0.1, name="other", facts={"clip_norm": 1.0}),
        row(30.0, 0.1, name="dpsgd", facts={"clip_norm": 1.0}, by_label=True),
    ):
        rows = len(ledger.rows)
        assert ledger.take_step(other) == 0, "another query draws on its own reservation"
        assert len(ledger.rows) == rows + 1 and ledger.rows[rows]["noise_multiplier"] == other.noise_multiplier
    assert ledger.take_step(query) == 1


def test_what_an_earlier_process_reserved_stays_spent(tmp_path):
    query = row(30.0, 0.1, name="dpsgd")
    crashed = on_disk(tmp_path)
    crashed.take_step(query, reserve_steps=50)
    resumed = on_disk(tmp_path)
    assert resumed.epsilon() == crashed.epsilon() == pytest.approx(in_memory([(30.0, 0.1, 50)]).epsilon())
    assert resumed.take_step(query, reserve_steps=10) == 0
    assert resumed.epsilon() == in_memory([(30.0, 0.1, 60)]).epsilon()
    assert [event["steps_executed"] for event in resumed.rows] == [0, 1]


def test_taking_steps_stops_at_the_target():
    ledger = in_memory(target=1.0, accountant="rdp")
    query = row(4.0, 0.05)
    n = ledger.affordable_steps(query, 10_000)
    with pytest.raises(BudgetExceeded):
        for _ in range(n + 1):
            ledger.take_step(query)
    assert sum(event["steps_executed"] for event in ledger.rows) == n > 10
    assert ledger.epsilon() <= 1.0


def test_more_steps_than_reserved_are_refused(tmp_path):
    ledger = on_disk(tmp_path)
    ledger.reserve(row(30.0, steps=2))
    for reservation, steps in ((0, 3), (0, -1)):
        with pytest.raises(IntegrityError):
            ledger.executed(reservation, steps)
    ledger.executed(0, 2)
    with pytest.raises(IntegrityError):
        ledger.executed(0, 1)


# Speed and weight.


@pytest.mark.parametrize("fact", ["sensitivity", "grid", "group_key", "max_images_per_unit"])
def test_a_query_does_not_state_what_its_mechanism_says(fact):
    with pytest.raises(ValueError, match=fact):
        row(30.0, facts={fact: 1.0})
