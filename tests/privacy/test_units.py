# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Person-level privacy: what all images of one unit can change together."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy import sensitive
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.queries.frequency import FrequencyFeatures, RandomFourierFeatures
from support.doors import CLASSES, KEY, Noiseless, put


SHAPE = (1, 4, 4)
NUM_UNITS = 6
# Unit 3 has most of the images, unit 4 one, unit 5 none; in no order.
UNITS = np.array([3, 0, 3, 1, 3, 3, 2, 0, 3, 4, 3, 1, 3, 3, 2])
BY_LABEL = sampled(1.0, by_label=True)
MANY = settings(max_examples=40, deadline=None, derandomize=True)


def make_ledger():
    return PrivacyLedger(
        None,
        target_epsilon=1e9,
        target_delta=1e-5,
        num_images=NUM_UNITS,
        accountant="rdp",
        unit_of_privacy="patient_id",
    )


def make_door(without=None, *, most=20, unreadable=(), scale=1.0, units=UNITS, ledger=None):
    """Random images; those of the unit `without` contribute nothing."""
    rng = np.random.default_rng(0)
    images = (rng.integers(0, 256, (len(units), *SHAPE)) * scale).astype(np.uint8)
    labels = rng.integers(0, 3, len(units))
    readable = ~np.isin(np.arange(len(units)), list(unreadable))
    if without is not None:
        readable &= units != without
    return SensitiveImages(
        images, labels, readable, num_images=len(units), image_shape=SHAPE, ledger=ledger or make_ledger(),
        class_names=CLASSES, units=units, num_units=NUM_UNITS, max_images_per_unit=most,
    )  # fmt: skip


def pixels(x, labels=None):
    return x.flatten(1)


def ask(door, fn=pixels, **changes):
    arguments = {"mechanism": BY_LABEL, "clip_norm": 1.0, "name": "query"}
    arguments |= {"ledger": make_ledger(), "generator": Noiseless(KEY)}
    return put(door, "noisy_sum", fn, **{**arguments, **changes})[0]


class Model(nn.Module):
    """The gradient of a row is a multiple of its pixels; of a white one it is not finite, of a black one huge."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1, bias=False)
        nn.init.zeros_(self.layer.weight)


def row_loss(model, images, labels, generator):
    return model.layer(images.flatten(1)).squeeze(1) * (1 + labels)


def gradient(door, **changes):
    arguments = {"mechanism": sampled(1.0), "max_grad_norm": 1.0, "normaliser": 1.0}
    arguments |= {"noise_multiplicity": 1, "max_physical_batch_size": 32, "ledger": make_ledger()}
    arguments |= {"generator": Noiseless(KEY)}
    loss = changes.pop("loss", row_loss)
    return put(door, "noisy_gradient", Model(), loss, **{**arguments, **changes})["layer.weight"][0]


@given(st.integers(0, NUM_UNITS - 1), st.sampled_from([1, 3, 20]), st.sampled_from([1e-2, 1.0, 30.0]), st.booleans())
@MANY
def test_one_unit_moves_a_query_by_the_clip_norm_at_most(unit, most, clip_norm, by_label):
    """Whatever it holds, in however many classes: the rows of all classes taken together."""
    arguments = {"clip_norm": clip_norm, "mechanism": BY_LABEL.at(by_label=by_label)}
    move = ask(make_door(most=most), **arguments) - ask(make_door(unit, most=most), **arguments)
    assert move.double().norm() <= clip_norm * (1 + 1e-5)


def test_a_unit_is_the_mean_of_its_images():
    """Each clipped by itself; over all its classes together, each in the row of its own."""
    door = make_door()
    images, labels = door._records.images.float() / 255, door._records.labels
    wanted = torch.zeros(3, 16)
    for unit in range(NUM_UNITS):
        mine = (torch.from_numpy(UNITS) == unit).nonzero().squeeze(1)
        for i in mine:
            image = images[i].flatten()
            wanted[labels[i]] += image * min(1.0, 2.0 / image.norm()) / len(mine)
    assert torch.allclose(ask(door, clip_norm=2.0), wanted, atol=1e-5)


def test_the_bound_of_a_unit_is_reached():
    identical = np.zeros(len(UNITS), dtype=np.int64) + UNITS
    door = make_door(units=identical)
    door._records.images[:] = 200
    door._records.labels[:] = 1
    without = make_door(3, units=identical)
    without._records.images[:] = 200
    without._records.labels[:] = 1
    assert (ask(door) - ask(without)).norm() == pytest.approx(1.0, abs=1e-5)
    assert (gradient(door) - gradient(without)).norm() == pytest.approx(1.0, abs=1e-5)


@given(st.integers(0, NUM_UNITS - 1), st.sampled_from([1, 4]), st.sampled_from([20, 33]), st.sampled_from([1e-2, 3.0]))
@MANY
def test_one_unit_moves_a_gradient_by_the_clip_norm_at_most(unit, multiplicity, size, clip_norm):
    arguments = {
        "max_grad_norm": clip_norm, "noise_multiplicity": multiplicity, "max_physical_batch_size": size,
    }  # fmt: skip
    move = gradient(make_door(), **arguments) - gradient(make_door(unit), **arguments)
    assert move.norm() <= clip_norm * (1 + 1e-5)
    assert (move.norm() > 0) == (unit != 5)


def test_a_unit_s_gradient_is_averaged_then_clipped():
    """Against one image at a time, and for physical batches of every size: a unit that is larger than one stays
    whole."""
    door = make_door()
    wanted = torch.zeros(16)
    for unit in range(NUM_UNITS):
        mine = (torch.from_numpy(UNITS) == unit).nonzero().squeeze(1)
        if len(mine):
            parts = [(door._records.images[i].flatten() / 127.5 - 1) * (1 + door._records.labels[i]) for i in mine]
            mean = torch.stack(parts).mean(0)
            wanted += mean * min(1.0, 3.0 / mean.norm().item())
    for size in (1, 4, 9, 10, 11, 32):
        for multiplicity in (1, 3):
            found = gradient(door, max_grad_norm=3.0, max_physical_batch_size=size, noise_multiplicity=multiplicity)
            assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.usefixtures("watching")
def test_no_more_images_of_a_unit_are_looked_at_than_declared():
    seen = []

    def loss(model, images, labels, generator):
        seen.append(len(images))
        return row_loss(model, images, labels, generator)

    for most, rows in ((1, 5), (2, 9), (3, 10), (20, 15)):
        seen.clear()
        gradient(make_door(most=most), loss=loss, max_physical_batch_size=64)
        assert sum(seen) == rows, most
    seen.clear()
    gradient(make_door(most=4), loss=loss, max_physical_batch_size=4)
    assert max(seen) <= 4 and sum(seen) == 11, "a unit is never split"


@pytest.mark.usefixtures("watching")
def test_which_images_of_a_unit_are_looked_at_is_drawn_anew():
    """Each of unit 3's eight images about equally often."""
    door = make_door(most=2)
    door._records.images[:] = 0
    mine = np.flatnonzero(UNITS == 3)
    door._records.images[mine, 0, 0, 0] = torch.arange(1, len(mine) + 1, dtype=torch.uint8) * 20
    counts = np.zeros(len(mine))
    for x in batches_of(door, repeats=400, generator=Noiseless(KEY)):
        kinds = (x[:, 0, 0, 0] * 255).round().long() // 20
        for kind in kinds[kinds > 0]:
            counts[kind - 1] += 1
    expected = 2 * 400 / len(mine)
    assert (
        counts.sum() == 800 and ((counts - expected) ** 2 / expected).sum() < 24.3
    )  # chi-square, 7 degrees, p = 0.001


def batches_of(door, **changes):
    """What a query sees, batch by batch."""
    seen, tried, ledger = [], [], make_ledger()
    refuse = ledger.refuse_unaffordable

    def granted(row):
        tried.append(len(seen))
        return refuse(row)

    def watch(x, labels):
        seen.append(x.clone())
        return pixels(x)

    ledger.refuse_unaffordable = granted
    ask(door, watch, ledger=ledger, **changes)
    assert len(seen) > tried[0]
    return seen[tried[0] :]  # before, random records are tried


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("size", [1, 4, 500])
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("most", [2, 20])
def test_a_unit_less_leaves_every_other_image_in_its_place(size, rate, most, monkeypatch):
    """In a batch of the same shape, with blanks where its images were: what another image adds is the same to the last
    bit. A batch of blanks alone is left out."""
    monkeypatch.setattr(sensitive, "QUERY_BATCH_SIZE", size)
    everybody = batches_of(make_door(most=most), mechanism=sampled(rate, by_label=True))
    for unit in range(NUM_UNITS):
        fewer = iter(batches_of(make_door(unit, most=most), mechanism=sampled(rate, by_label=True)))
        lost, found = 0, next(fewer, None)
        for images in everybody:
            stays = None if found is None or len(found) != len(images) else (images == found).flatten(1).all(1)
            if stays is not None and not found[~stays].any() and stays.any():
                lost, found = lost + int((~stays).sum()), next(fewer, None)
            else:  # nobody but the unit was there
                lost += int(images.flatten(1).any(1).sum())
                assert images.flatten(1).any(1).sum() == 1
        assert found is None and lost <= min(most, (UNITS == unit).sum()), unit


class Coupled(Noiseless):
    """Each record keeps its own coin, wherever it lies among the others; each unit keeps its own, too."""

    def __init__(self, coins):
        super().__init__(KEY)
        self.coins = coins

    def uniform(self, size):
        return self.coins.copy() if size == len(self.coins) else super().uniform(size)


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_record_without_an_id_changes_no_choice_among_images_of_other_units(most, rate):
    """Whether the loader leaves it out or it is there and counts for nobody. Its own unit's choice alone may change:
    with and without it, that unit is a clip norm at most from one that is not there. Coins of places would move with
    a record that is gone, so that each record keeps its own here."""
    coins, numbers = np.random.default_rng(1).random(len(UNITS)), np.arange(len(UNITS))

    images = np.random.default_rng(2).integers(1, 256, (len(UNITS), *SHAPE))

    def chosen(kept, unreadable=()):
        door = make_door(most=most, units=UNITS[kept], unreadable=unreadable)
        door._records.images[:] = torch.tensor(images, dtype=torch.uint8)[kept]
        door._records.labels[:] = torch.tensor(numbers % 3)[kept]
        seen = torch.cat(batches_of(door, mechanism=sampled(rate, by_label=True), generator=Coupled(coins[kept])))
        found = [np.flatnonzero((images == (x * 255).round().numpy()).all((1, 2, 3))) for x in seen if x.any()]
        sums = [
            put(door, "noisy_sum", pixels, sampled(rate), clip_norm=1.0, name="query",
                ledger=make_ledger(), generator=Coupled(coins[kept])),
            gradient(door, mechanism=sampled(rate), generator=Coupled(coins[kept])),
        ]  # fmt: skip
        return {int(number) for (number,) in found}, sums

    everybody, sums = chosen(numbers)
    for lost in numbers:
        mine = set(np.flatnonzero(UNITS == UNITS[lost]))
        _, without = chosen(numbers, mine)
        assert all((a - b).norm() <= 1 + 1e-5 for a, b in zip(sums, without, strict=True))
        for others, moved in (chosen(np.delete(numbers, lost)), chosen(numbers, [lost])):
            assert everybody - mine == others - mine and lost not in others
            assert all((a - b).norm() <= 1 + 1e-5 for a, b in zip(moved, without, strict=True))


def test_units_are_sampled_not_images():
    """A unit takes part with probability q, however many images it has, and with all of them or none."""
    door = make_door()
    door._records.images[:] = 128
    generator = Noiseless(KEY)
    answers = put(
        door, "noisy_sum", lambda x, _: torch.ones(len(x), 1), sampled(0.3), clip_norm=1.0,
        name="q", repeats=3000, generator=generator,
    ).flatten()  # fmt: skip
    assert torch.allclose(answers, answers.round(), atol=1e-5)
    assert answers.mean().item() == pytest.approx(5 * 0.3, abs=4 * math.sqrt(5 * 0.21 / 3000))


def test_unreadable_images_are_not_averaged_over():
    mine = np.flatnonzero(UNITS == 3)
    whole, damaged = make_door(), make_door(unreadable=mine[1:])
    image = whole._records.images[mine[0]].float().flatten() / 255
    others = make_door(3)
    assert torch.allclose((ask(damaged) - ask(others)).sum(0), image / image.norm(), atol=1e-5)
    rest = UNITS != 3
    absent = SensitiveImages(
        whole._records.images[rest].numpy(), whole._records.labels[rest].numpy(), num_images=len(UNITS),
        image_shape=SHAPE, ledger=make_ledger(), class_names=CLASSES, units=UNITS[rest], num_units=NUM_UNITS,
        max_images_per_unit=20,
    )  # fmt: skip
    assert torch.allclose(ask(absent), ask(others), atol=1e-6), "none readable: as if it were not there"
    assert torch.allclose(gradient(absent), gradient(others), atol=1e-6)


def test_a_unit_that_is_not_finite_contributes_nothing():
    """As a whole: its mean is not finite."""
    mine = int(np.flatnonzero(UNITS == 3)[2])
    door = make_door()
    door._records.images[mine] = 255

    def loss(model, images, labels, generator):
        broken = (images.flatten(1) == 1).all(1)
        return row_loss(model, images, labels, generator) * torch.where(broken, math.nan, 1.0)

    assert torch.allclose(gradient(door, loss=loss), gradient(make_door(3), loss=loss), atol=1e-6)


def test_the_ledger_counts_units():
    door = make_door()
    ledger = make_ledger()
    ask(door, ledger=ledger)
    (entry,) = ledger.rows
    assert entry["dataset_size"] == NUM_UNITS and ledger.header["unit_of_privacy"] == "patient_id"
    assert entry["partition"] is None, "a unit may lie in several classes"
    assert entry["query"]["max_images_per_unit"] == 20
    images = PrivacyLedger(None, target_epsilon=1e9, target_delta=1e-5, num_images=len(UNITS), accountant="rdp")
    with pytest.raises(ValueError, match="ledger counts 15"):
        make_door(ledger=images)


def test_queries_divide_by_the_number_of_units():
    ledger = make_ledger()
    door = make_door(ledger=ledger)
    FrequencyFeatures(feature_map=RandomFourierFeatures(SHAPE, 20, 2.0, 0)).answer(door, noise_multiplier=1.0)
    MeanImages(image_shape=SHAPE, sample_rate=0.5).answer(door, noise_multiplier=1.0)
    assert [row["query"]["normaliser"] for row in ledger.rows] == [NUM_UNITS, 0.5 * NUM_UNITS / 3]


def test_more_units_than_declared_are_refused():
    with pytest.raises(UsageError, match="--num_train_units"):
        make_door(units=np.where(UNITS == 4, NUM_UNITS, UNITS))
