# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--participation exactly` at the door: who takes part in which step."""

import numpy as np
import pytest

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.audit.bands import groups_of_rows
from diffusers_dp.errors import BudgetExceeded, UsageError
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.keyed_hash import allocated_turns, digests_of
from support.bands import bands_of, numbered, one_hot_loss, one_weight_each, taken
from support.doors import Noiseless, put
from support.turns import KEY, allocation_of


COUNT, TURNS, PARTICIPATIONS = 61, 6, 2
ALLOCATION, BANDS = allocation_of(TURNS, PARTICIPATIONS), bands_of(4)


def make_ledger(path=None, count=COUNT):
    return PrivacyLedger(path, target_epsilon=1e9, target_delta=1e-5, num_images=count)


def make_door(images=None, readable=None, key=KEY, **more):
    images = numbered(COUNT) if images is None else images
    return SensitiveImages(
        images, None, readable, num_images=COUNT, image_shape=(1, 4, 4),
        ledger=make_ledger(count=more.get("num_units", COUNT)), participation_key=key, **more,
    )  # fmt: skip


def who_took_part(door, ledger=None, steps=None, *, bands=None, allocation=ALLOCATION, **more):
    number = 1 if bands is None else bands.count
    return taken(
        door, ledger or make_ledger(count=door.num_units), steps or TURNS * number, count=COUNT, bands=bands,
        sample_rate=allocation.rate / number, allocation=allocation, generator=Noiseless(), **more,
    )  # fmt: skip


def test_turns_are_those_of_a_hash_that_does_not_change():
    """A run that is resumed after years finds them again."""
    assert allocated_turns(digests_of(["cat/1.png", 7]), KEY, 35, 5).tolist() == [
        [15, 16, 17, 26, 30],
        [7, 15, 26, 27, 32],
    ]


def test_each_choice_of_turns_is_as_likely():
    """Of 4 turns there are six pairs; and where one unit has its turns says nothing of another."""
    chosen = allocated_turns(digests_of(range(30_000)), KEY, 4, 2)
    pairs = np.unique(chosen[:, 0] * 4 + chosen[:, 1], return_counts=True)[1]
    assert len(pairs) == 6 and np.square(pairs - 5000).sum() / 5000 < 25
    first = (chosen == 0).any(1)
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 5 / len(first) ** 0.5


@pytest.mark.parametrize("bands", [None, BANDS])
def test_each_image_takes_part_exactly_k_times(bands):
    """In the turns of its group alone, that the key gives it."""
    who = who_took_part(make_door(), bands=bands)
    assert set(who.sum(0)) == {PARTICIPATIONS}
    number = 1 if bands is None else bands.count
    groups = np.zeros(COUNT, dtype=int) if bands is None else groups_of_rows(COUNT, bands)
    turns = allocated_turns(digests_of(range(COUNT)), KEY, TURNS, PARTICIPATIONS)
    for image in range(COUNT):
        assert np.flatnonzero(who[:, image]).tolist() == (turns[image] * number + groups[image]).tolist()


def test_batches_of_one_change_nobody():
    assert np.array_equal(who_took_part(make_door()), who_took_part(make_door(), max_physical_batch_size=1))


def test_what_is_missing_moves_nobody():
    """A broken record, the last ones gone, or one without an id: the others have the turns that they had."""
    all_there = who_took_part(make_door(), bands=BANDS)
    readable = np.ones(COUNT - 5, dtype=bool)
    readable[[0, 7]] = False
    some = who_took_part(make_door(numbered(COUNT - 5), readable), bands=BANDS)
    there = np.append(readable, np.zeros(5, dtype=bool))
    assert np.array_equal(some, all_there & there)
    ids = digests_of([None if number == 3 else f"{number}.png" for number in range(COUNT)])
    named = who_took_part(make_door(ids=ids))
    order = np.random.default_rng(0).permutation(COUNT)
    moved = who_took_part(make_door(numbered(COUNT)[order], ids=ids[order]))
    assert np.array_equal(named, moved) and not named[:, 3].any()
    assert set(np.delete(named, 3, axis=1).sum(0)) == {PARTICIPATIONS}


def test_units_have_turns_as_a_whole():
    units = np.arange(COUNT) % 7
    door = make_door(units=units, num_units=7, max_images_per_unit=20, ids=digests_of(units.tolist()))
    who = who_took_part(door)
    turns = allocated_turns(digests_of(range(7)), KEY, TURNS, PARTICIPATIONS)
    for unit in range(7):
        assert np.array_equal(np.flatnonzero(who[:, unit]), turns[unit])
        assert (who[:, units == unit] == who[:, [unit]]).all()


def test_a_resumed_run_goes_on_behind_the_lost_turns(tmp_path):
    """Its door has the same key: what was lost stays lost, and nobody takes part more often."""
    path = tmp_path / "ledger.jsonl"
    whole = who_took_part(make_door(), bands=BANDS)
    first = who_took_part(make_door(), make_ledger(path), 5, bands=BANDS, reserve_steps=8)
    ledger = make_ledger(path)
    second = who_took_part(make_door(), ledger, 16, bands=BANDS, reserve_steps=16)
    assert np.array_equal(first, whole[:5]) and np.array_equal(second, whole[8:])
    with pytest.raises(BudgetExceeded):
        who_took_part(make_door(), ledger, 1, bands=BANDS)


def test_doors_to_one_ledger_share_the_turns():
    """Each step is one's or the other's."""
    whole, ledger = who_took_part(make_door()), make_ledger()
    doors = [make_door(), make_door()]
    steps = [who_took_part(doors[step % 2], ledger, 1, reserve_steps=TURNS - step)[0] for step in range(2)]
    positions = [row["first_step"] for row in ledger.rows]
    assert positions == [0] and np.array_equal(steps, whole[:2])


def ask(door, ledger=None, **changes):
    ledger = ledger or make_ledger(count=door.num_units)
    put(
        door, "noisy_gradient", one_weight_each(COUNT), one_hot_loss, max_grad_norm=1.0, noise_multiplier=2.0,
        normaliser=1.0, noise_multiplicity=1, max_physical_batch_size=64, ledger=ledger,
        **{"sample_rate": ALLOCATION.rate, "allocation": ALLOCATION, **changes},
    )  # fmt: skip


@pytest.mark.parametrize(("door", "changes", "error", "words"), [
    ({"key": None}, {}, ValueError, "another key"),
    ({"key": bytes(32)}, {}, ValueError, "another key"),
    ({}, {"truncated_batch_size": 20}, UsageError, "k / t, nothing is truncated"),
    ({}, {"sample_rate": 0.3}, UsageError, "k / t"),
    ({"exact": True}, {}, UsageError, "noise is not exact"),
    ({"ids": digests_of(["same"] * COUNT)}, {}, ValueError, "one id"),
    ({"units": np.arange(COUNT) % 7, "num_units": 7}, {}, ValueError, "ids of the units"),
])  # fmt: skip
def test_what_has_no_proof_is_refused(door, changes, error, words):
    door = make_door(**door)
    ledger = make_ledger(count=door.num_units)
    with pytest.raises(error, match=words):
        ask(door, ledger, **changes)
    assert ledger.rows == []
