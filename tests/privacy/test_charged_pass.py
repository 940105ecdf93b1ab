# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A query is charged after its exact sum is in memory and before its noise is drawn; a kill before costs nothing,
an error costs the query."""

import pytest
import torch

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import ProcessLost
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.records import PrivateRecords
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import make_door, make_ledger


QUERY = {"mechanism": sampled(1.0, 2.0, by_label=True), "clip_norm": 1.0, "name": "query"}


def pixels(x, labels=None):
    return x.flatten(1)


def of_units(**options):
    """Four people of three images."""
    units = torch.arange(12).numpy() // 3
    return make_door(units=units, num_units=4, ledger=make_ledger(4), **options)


DOORS = {"images": make_door, "units": of_units, "exact": lambda: make_door(exact=True)}


@pytest.fixture
def order(monkeypatch):
    """What happens in a query, in its order."""
    happened = []

    def note(owner, name, word):
        original = getattr(owner, name)

        def noted(self, *arguments, **options):
            happened.append(word)
            return original(self, *arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    note(PrivacyLedger, "refuse_unaffordable", "gate")
    note(PrivacyLedger, "reserve", "row")
    note(PrivateRecords, "batches_for_query", "pass")
    note(PrivateGenerator, "normal", "noise")
    note(PrivateGenerator, "rounded_normal", "noise")
    return happened


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_gate_pass_row_and_noise_follow_each_other(kind, rate, order):
    """All repeats are summed before the one row, so that a kill in the last one costs nothing either."""
    door = DOORS[kind]()
    answer = door.noisy_sum(pixels, **{**QUERY, "mechanism": sampled(rate, 2.0, by_label=True)}, repeats=3)
    assert [word for word in order if word != "gate"] == ["pass"] * 3 + ["row"] + ["noise"] * 3
    assert order[0] == "gate" and answer.shape == (3, 3, 64)
    assert [(row["steps_reserved"], row["steps_executed"]) for row in door.ledger.rows] == [(3, 3)]


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_error_within_the_pass_is_charged_and_nothing_is_drawn(error, number, order, monkeypatch):
    """The operator, or whoever catches it, has seen something of the images."""
    door, passes, batches = make_door(), [], PrivateRecords.batches_for_query

    def fails(self, *arguments):
        passes.append(1)
        yield from batches(self, *arguments)
        if len(passes) == number:
            raise error

    monkeypatch.setattr(PrivateRecords, "batches_for_query", fails)
    with pytest.raises(error):
        door.noisy_sum(pixels, **QUERY, repeats=3)
    assert [(row["steps_reserved"], row["state"]) for row in door.ledger.rows] == [(3, "reserved")]
    assert "noise" not in order


class Another(Processes):
    """Another process is lost, or its pass failed."""

    def __init__(self, lost):
        super().__init__()
        self.is_lost = lost

    def any(self, answer):
        if self.is_lost:
            raise ProcessLost(self.lost)
        return True


def test_a_process_that_is_killed_costs_nothing_and_one_that_fails_the_query(order):
    for lost, rows in ((True, []), (False, ["reserved"])):
        door = make_door(processes=Another(lost))
        with pytest.raises(ProcessLost):
            door.noisy_sum(pixels, **QUERY)
        assert [row["state"] for row in door.ledger.rows] == rows and "noise" not in order


@pytest.mark.parametrize("end", [ProcessLost, KeyboardInterrupt])
def test_an_own_error_is_charged_whatever_ends_the_wait_for_the_others(end, monkeypatch):
    """Another process is killed, or Ctrl-C comes, while this one waits with its error."""

    class Waiting(Processes):
        def any(self, answer):
            raise end(self.lost)

    def fails(self, *_):
        raise ArithmeticError("about an image")
        yield

    door = make_door(processes=Waiting())
    monkeypatch.setattr(PrivateRecords, "batches_for_query", fails)
    with pytest.raises(end):
        door.noisy_sum(pixels, **QUERY)
    assert [row["state"] for row in door.ledger.rows] == ["reserved"]


def test_the_row_is_on_disk_before_noise_is_drawn(tmp_path, monkeypatch):
    path, normal = tmp_path / "ledger.jsonl", PrivateGenerator.normal
    ledger = PrivacyLedger(path, target_epsilon=1e9, target_delta=1e-5, num_images=12, accountant="rdp")
    lines = []

    def noted(self, *arguments, **options):
        lines.append(path.read_text().count('"query":'))
        return normal(self, *arguments, **options)

    monkeypatch.setattr(PrivateGenerator, "normal", noted)
    make_door(ledger=ledger).noisy_sum(pixels, **QUERY, repeats=2)
    assert lines == [1, 1]
