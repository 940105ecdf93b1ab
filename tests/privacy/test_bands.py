# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Steps with bands at the door: whose turn it is, at which rate, and what noise is on the sum."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.audit.canaries import groups_of_rows
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.keyed_hash import digests_of, group_of
from support.bands import bands_of, matrix, numbered, one_hot_loss, one_weight_each, taken
from support.doors import Noiseless, put
from support.ledgers import row


SHAPE = (1, 4, 4)
COUNT = 61  # is not divisible by the bands
BANDS = bands_of(4, rate=0.1, sigma=3.0)
WHOLE = bands_of(4, rate=0.25)  # bq = 1: the whole group
GROUPS = groups_of_rows(COUNT, BANDS)
MANY = settings(max_examples=60, deadline=None, derandomize=True)


def make_ledger(path=None, count=COUNT):
    return PrivacyLedger(path, target_epsilon=1e9, target_delta=1e-5, num_images=count, accountant="rdp")


def make_door(images=None, readable=None, **more):
    images = numbered(COUNT) if images is None else images
    ledger = make_ledger(count=more.get("num_units", COUNT))
    return SensitiveImages(images, None, readable, num_images=COUNT, image_shape=SHAPE, ledger=ledger, **more)


def test_groups_are_those_of_a_hash_that_does_not_change():
    """A stranger forms them from the receipt and an id; sizes are those of independent draws."""
    key = "000102030405060708090a0b0c0d0e0f"
    ids = ["cat/1.png", "dog/1.png", 7, "7", "x" * 10_000, "\udcff.png"]
    assert group_of(digests_of(ids), 16, key).tolist() == [group_by_hand(each, 16, key) for each in ids]
    assert len(set(digests_of([7, "7"]).tolist())) == 2, "a number is not its text"
    sizes = np.bincount(group_of(digests_of(range(4000)), 10, key), minlength=10)
    assert np.square(sizes - 400).sum() / 400 < 30 and sizes.std() > 0
    labels = np.arange(4000) % 10  # of data in cyclic order: no group is lopsided
    shares = [np.bincount(labels[group_of(digests_of(range(4000)), 10, key) == g], minlength=10) for g in range(10)]
    assert np.max(shares) < 80


def group_by_hand(identifier, count, key):
    """By the formula of docs/guarantee.md."""
    kind = "text" if isinstance(identifier, str) else "number"
    digest = hashlib.sha256(f"{kind}:{identifier}".encode("utf-8", "surrogateescape")).digest()[:16]
    first = hashlib.blake2b(digest, key=bytes.fromhex(key), digest_size=8).digest()[:4]
    return int.from_bytes(first, "big") * count >> 32


def test_groups_take_turns_by_the_position_in_the_ledger():
    who = taken(make_door(), make_ledger(), 24, count=COUNT, mechanism=WHOLE, generator=Noiseless())
    for step in range(24):
        assert np.array_equal(np.flatnonzero(who[step]), np.flatnonzero(GROUPS == step % 4))


def test_a_group_is_sampled_at_the_rate_times_the_bands():
    """As many as without bands are expected in a step, of a quarter of all."""
    who = taken(make_door(), make_ledger(), 400, count=COUNT, mechanism=BANDS, generator=Noiseless())
    turns = np.arange(400)[:, None] % 4 == GROUPS
    assert not who[~turns].any()
    assert who[turns].mean() == pytest.approx(0.4, abs=5 * (0.24 / turns.sum()) ** 0.5)
    assert who.sum(1).mean() == pytest.approx(0.1 * COUNT, abs=5 * (COUNT / 4 * 0.24 / 400) ** 0.5)
    counts = who.sum(0)  # of 100 turns, independently
    assert np.square(counts - 40).mean() / 24 == pytest.approx(1, abs=5 * (2 / COUNT) ** 0.5)


def test_units_take_turns_as_a_whole():
    """Image i is of unit i mod 7: all images of a unit, or none, and their mean is clipped as one vector."""
    units = np.arange(COUNT) % 7
    door = make_door(units=units, num_units=7, max_images_per_unit=20, ids=digests_of(units.tolist()))
    bands, ledger = bands_of(3, seed=1, rate=1 / 3), make_ledger(count=7)
    groups = groups_of_rows(7, bands)
    sums = [
        put(
            door, "noisy_gradient", one_weight_each(COUNT), one_hot_loss, bands, max_grad_norm=1.0, normaliser=1.0,
            noise_multiplicity=1, max_physical_batch_size=64, ledger=ledger, generator=Noiseless(),
        )["weight"][0, 1:].numpy()
        for _ in range(6)
    ]  # fmt: skip
    for step, found in enumerate(sums):
        expected = np.where(groups[units] == step % 3, 1 / np.bincount(units)[units], 0.0)
        assert np.allclose(found, expected, atol=1e-6)
    assert ledger.epsilon() == pytest.approx(plain_epsilon(2.0, 2), abs=1e-9)


def plain_epsilon(sigma, steps):
    ledger = make_ledger(count=7)
    ledger.reserve(row(sigma, steps=steps))
    return ledger.epsilon()


def noise_of(door, ledger, steps, width=20_000, **changes):
    """Answers on images that nobody can read."""
    arguments = {"mechanism": BANDS, "max_grad_norm": 0.5, "normaliser": 4.0}
    arguments |= {"noise_multiplicity": 1, "max_physical_batch_size": 8, "ledger": ledger, "reserve_steps": steps}
    model, arguments = nn.Linear(16, width // 16, bias=False), {**arguments, **changes}
    return torch.stack([
        put(door, "noisy_gradient", model, lambda m, x, _, g: m(x.flatten(1)).sum(1), **arguments)["weight"]
        for _ in range(steps)
    ]).flatten(1).double().numpy()  # fmt: skip


def blank_door():
    return make_door(readable=np.zeros(COUNT, dtype=bool))


def test_the_noise_on_a_sum_of_steps_is_what_the_matrix_predicts():
    """With no gradients: its size after each step, and C times it is white, of sigma times C_clip over the divisor."""
    answers = noise_of(blank_door(), make_ledger(), 24)
    inverse = np.linalg.inv(matrix(BANDS.coefficients, [24]))
    predicted = np.linalg.norm(np.cumsum(inverse, axis=0), axis=1) * 3.0 * 0.5 / 4.0
    assert np.cumsum(answers, axis=0).std(1) == pytest.approx(predicted, rel=0.03)
    white = matrix(BANDS.coefficients, [24]) @ answers / (3.0 * 0.5 / 4.0)
    assert white.std() == pytest.approx(1, abs=5 / (2 * white.size) ** 0.5)
    assert np.abs(np.corrcoef(white) - np.eye(24)).max() < 6 / white.shape[1] ** 0.5


def test_a_resumed_run_begins_a_new_block_and_takes_the_next_group(tmp_path):
    """Lost steps pass their groups' turns; nothing of the past is added to the new process' noise."""
    path = tmp_path / "ledger.jsonl"
    before = noise_of(blank_door(), make_ledger(path), 5, reserve_steps=7)
    ledger = make_ledger(path)
    door = make_door()
    assert ledger.rows[0]["steps_reserved"] == 7
    who = taken(
        door, ledger, 1, count=COUNT, mechanism=BANDS, max_grad_norm=0.5, normaliser=4.0, generator=Noiseless()
    )  # fmt: skip
    assert set(GROUPS[np.flatnonzero(who[0])]) <= {7 % 4} and who.any()
    after = noise_of(blank_door(), ledger, 4)
    c = matrix(BANDS.coefficients, [5, 4]) / (3.0 * 0.5 / 4.0)
    white = c @ np.concatenate([before, after])
    assert white.std(1) == pytest.approx(np.ones(9), rel=0.03)
    assert np.abs(np.corrcoef(white) - np.eye(9)).max() < 6 / white.shape[1] ** 0.5


def test_noise_of_a_resumed_run_is_fresh():
    """Two doors at the same position, as after a crash whose ledger was restored: the draws are others."""
    first, second = (noise_of(blank_door(), make_ledger(), 3) for _ in range(2))
    assert (first == second).mean() < 1e-3
    assert abs(np.corrcoef(first[0], second[0])[0, 1]) < 6 / first.shape[1] ** 0.5


def test_what_has_no_proof_is_refused():
    with pytest.raises(UsageError, match="must lie in"):
        bands_of(4, rate=0.26)


def test_the_door_with_past_noise_is_never_serialised():
    door = blank_door()
    noise_of(door, make_ledger(), 2)
    for part in (door, door._passage, door._passage._noise, door._passage._sums):
        with pytest.raises(TypeError, match="never serialised"):
            part.__reduce__()


def test_a_query_has_no_turns():
    with pytest.raises(ValueError, match="no stream"):
        make_door().noisy_sum(lambda x, _: x.flatten(1), BANDS, clip_norm=1.0, name="query")


@pytest.mark.parametrize("mechanism", [sampled(0.1, 3.0), BANDS.at(rate=0.1)], ids=["independent", "banded"])
def test_another_noise_multiplier_is_another_noise(mechanism):
    """Of one door, whatever it had before."""
    door, ledger = blank_door(), make_ledger()
    for sigma in (3.0, 30.0):
        (found,) = noise_of(door, ledger if mechanism.num_groups == 1 else make_ledger(), 1,
                            mechanism=mechanism.with_noise(sigma))  # fmt: skip
        expected = sigma * 0.5 / 4.0 / (1.0 if mechanism.num_groups == 1 else mechanism.coefficients[0])
        assert found.std() == pytest.approx(expected, rel=0.05)
