# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Teachers on shares of the units: whose records one sees, how far a unit moves an answer, and what is charged.

One unit in one share: everything that one teacher says may change, and nothing that another says.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.errors import BudgetExceeded, UsageError
from diffusers_dp.mechanisms import Shares, sampled
from diffusers_dp.privacy.teachers import ANSWER, Teachers
from diffusers_dp.randomness.keyed_hash import digests_of, group_of
from support.doors import KEY, SHAPE, Counting, Noiseless, make_door, make_ledger
from support.ledgers import independent_epsilon, on_disk
from support.teachers import INPUTS, Network, Student, loss, teaching, votes


COUNT = 24
SHARES = Shares(noise_multiplier=1.0, number=4, group_key=KEY.hex())
SHARE = group_of(digests_of(range(COUNT)), SHARES.number, SHARES.group_key)
C = 0.5


def teachers_of(door, how=None, shares=SHARES, **more):
    torch.manual_seed(0)  # public: the same teachers at the beginning
    return Teachers(door, how or teaching(), shares, **more)


def answer(teachers, *, noise_multiplier=1.0, clip_norm=C, mechanism=None, **changes):
    votes = INPUTS if teachers.teaching.votes else None
    mechanism = mechanism or teachers.shares.at(noise_multiplier=noise_multiplier, votes=votes)
    return teachers.noisy_gradient(
        Student(), teachers.teaching, mechanism, max_grad_norm=clip_norm, normaliser=1.0, **changes
    )[ANSWER]


def noiseless(missing=(), images=None, how=None, rounds=2, **door):
    """Sums after some rounds, without noise and under the same draws of batches."""
    made = make_door(missing, images, count=COUNT, num_images=COUNT, **door)
    made._generator = Noiseless(KEY)
    teachers = teachers_of(made, how)
    return [answer(teachers, clip_norm=math.sqrt(INPUTS) if how and how.votes else C) for _ in range(rounds)]


def vectors_of_shares(teachers):
    """What each share says, without noise, after a step."""
    chunk = teachers._chunks[0]
    inputs, labels = Student().inputs()
    teachers._shape = teachers._try(inputs, labels)
    teachers._learn(chunk, inputs, labels)
    return teachers._vectors(chunk, inputs, labels, C)


def test_one_unit_moves_one_share_alone_to_the_last_bit():
    """Its record changes, cannot be read, loses its id or its label: the vectors of all other shares stay."""
    images = np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8)
    changed = images.copy()
    changed[7] = 255 - changed[7]
    labels = np.arange(COUNT) % 3
    ids = digests_of(range(COUNT))
    without_id, outside = (
        digests_of([None if n == 7 else n for n in range(COUNT)]),
        np.where(np.arange(COUNT) == 7, 9, labels),
    )

    def said(missing=(), images=images, labels=labels, ids=ids):
        door = make_door(missing, images.copy(), num_images=COUNT, labels=labels, ids=ids)
        door._generator = Noiseless(KEY)
        return vectors_of_shares(teachers_of(door, teaching(batch_size=64)))

    before = said()
    assert np.bincount(SHARE, minlength=4).min() > 1 and before.norm(dim=1).min() > 0
    for after in (said([7]), said(images=changed), said(ids=without_id), said(labels=outside)):
        moved = (before != after).any(1).numpy()
        assert moved[SHARE[7]] and moved.sum() == 1


def test_a_record_without_an_id_is_in_no_share():
    """Its digest is the same as that of others without one, which would be in one share together."""
    ids = digests_of([None if n in (3, 7) else n for n in range(COUNT)])
    door = make_door(count=COUNT, num_images=COUNT, ids=ids)
    assert sorted(teachers_of(door)._order.tolist()) == [n for n in range(COUNT) if n not in (3, 7)]


def test_a_unit_turns_its_teacher_around_and_moves_the_sum_by_two_clip_norms_at_most():
    """The worst teacher says the opposite where a unit is missing: the bound is reached, and the noise is for it."""

    def extreme(teacher, inputs, labels):
        return 1e6 * teacher(inputs, labels).sum() * torch.ones(INPUTS, 2)

    images = np.zeros((COUNT, *SHAPE), dtype=np.uint8)
    images[7] = 255
    lever = teaching(new=Lever, loss=raise_where_bright, blame=extreme, batch_size=64)
    there, gone = noiseless(images=images, how=lever), noiseless([7], images=images, how=lever)
    for one, other in zip(there, gone, strict=True):
        assert float((one - other).norm()) == pytest.approx(2 * C, rel=1e-6)
    door = make_door(images=images)
    teachers = teachers_of(door)
    answer(teachers)
    row = door.ledger.rows[0]
    assert row["query"]["sensitivity"] == 2 * C and row["query"]["clip_norm"] == C


def raise_where_bright(teacher, real, real_labels, inputs, labels):
    return -teacher(real, None).sum()


class Lever(nn.Module):
    """One weight, which rises or falls with the brightest pixel of a batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, images, labels):
        return self.weight * images.amax() * torch.ones(len(images))


def test_votes_are_one_hot_and_move_by_the_root_of_two_each():
    how = teaching(blame=votes, votes=True)
    for unit in range(6):
        for one, other in zip(noiseless(how=how), noiseless([unit], how=how), strict=True):
            assert float((one - other).square().sum()) <= 2 * INPUTS + 1e-6
    assert (noiseless(how=how)[0].sum(1) == SHARES.number).all(), "each teacher votes once for each input"
    images = np.zeros((COUNT, *SHAPE), dtype=np.uint8)
    images[7] = 255

    def extreme(teacher, inputs, labels):
        side = 1e6 * teacher(inputs, labels).sum() * torch.ones(INPUTS)
        return torch.stack([side, -side], 1)

    lever = teaching(new=Lever, loss=raise_where_bright, blame=extreme, batch_size=64, votes=True)
    there, gone = noiseless(images=images, how=lever), noiseless([7], images=images, how=lever)
    assert float((there[0] - gone[0]).square().sum()) == 2 * INPUTS, "a unit changes all votes of its share"
    door = make_door(count=COUNT, num_images=COUNT)
    teachers = teachers_of(door, how)
    answer(teachers, clip_norm=math.sqrt(INPUTS))
    assert door.ledger.rows[0]["query"]["sensitivity"] == math.sqrt(2 * INPUTS)
    with pytest.raises(ValueError, match="votes have the norm"):
        answer(teachers, clip_norm=1.0)


@pytest.mark.parametrize("how, sensitivity", [
    (teaching(), 2 * C), (teaching(blame=votes, votes=True), math.sqrt(2 * INPUTS)),
])  # fmt: skip
def test_the_noise_is_for_the_sensitivity(how, sensitivity):
    """Without readable records the answer is noise alone, fresh in each round."""
    door = make_door(range(COUNT), count=COUNT, num_images=COUNT)
    teachers = teachers_of(door, how)
    clip_norm = math.sqrt(INPUTS) if how.votes else C
    answers = torch.stack([answer(teachers, noise_multiplier=3.0, clip_norm=clip_norm) for _ in range(200)]).double()
    std = 3.0 * sensitivity
    assert float(answers.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * answers.numel()))
    assert abs(float((answers[1:] * answers[:-1]).mean())) < 5 * std**2 / math.sqrt(answers.numel())


def test_draws_do_not_depend_on_how_many_records_a_share_has():
    """Else a record would shift the batches of other shares."""
    drawn = []
    for missing in ((), range(0, COUNT, 2), range(COUNT)):
        door = make_door(missing, count=COUNT, num_images=COUNT)
        door._generator = source = Counting()
        teachers = teachers_of(door)
        answer(teachers)
        drawn.append((source.uniforms, source.normals))
    assert drawn[0] == drawn[1] == drawn[2]


def test_an_empty_share_and_a_diverged_teacher_say_nothing_in_silence():
    (one, _), (none, _) = noiseless(), noiseless(np.flatnonzero(SHARE == 2))
    assert one.isfinite().all() and none.isfinite().all() and not torch.equal(one, none)
    door = make_door(np.flatnonzero(SHARE == 2), count=COUNT, num_images=COUNT)
    door._generator = Noiseless(KEY)
    assert vectors_of_shares(teachers_of(door))[2].norm() == 0

    def to_infinity(teacher, real, real_labels, inputs, labels):
        return loss(teacher, real, real_labels, inputs, labels) * (1e38 * (real.mean() > 0)).square()

    assert noiseless(how=teaching(loss=to_infinity))[1].isfinite().all()
    door = make_door(np.arange(COUNT)[np.arange(COUNT) % 3 == 1], count=COUNT, num_images=COUNT)  # no image of a class
    assert answer(teachers_of(door)).isfinite().all()


def test_all_images_of_a_unit_are_in_one_share():
    units = np.arange(COUNT) // 3
    door = make_door(
        count=COUNT, num_images=COUNT, units=units, num_units=8, ids=digests_of([f"patient {n}" for n in units]),
        ledger=make_ledger(8),
    )  # fmt: skip
    teachers = teachers_of(door)
    chunk = teachers._chunks[0]
    for unit in range(8):
        held = [set(teachers._order[f : f + n].tolist()) & set(np.flatnonzero(units == unit)) for f, n in
                zip(chunk.first.tolist(), chunk.counts.tolist(), strict=True)]  # fmt: skip
        assert sorted(map(len, held)) == [0, 0, 0, 3]
    with pytest.raises(ValueError, match="ids of units"):
        teachers_of(make_door(count=COUNT, num_images=COUNT, units=units, num_units=8, ledger=make_ledger(8)))


def test_a_round_is_charged_before_an_image_is_read(tmp_path):
    ledger = on_disk(tmp_path, num_images=COUNT, target_epsilon=3.0)
    door = make_door(count=COUNT, num_images=COUNT, ledger=ledger)
    teachers = teachers_of(door)
    for _ in range(4):
        answer(teachers, noise_multiplier=4.0, reserve_steps=2)
    (first, second), epsilon = ledger.rows, independent_epsilon(ledger.path)
    assert first["stage"] == second["stage"] == "teachers" and first["steps_executed"] == 2
    assert first["query"]["shares"] == 4 and first["query"]["group_key"] == KEY.hex()
    assert ledger.epsilon() == pytest.approx(epsilon, rel=1e-3)

    class Unreadable:
        def __getitem__(self, index):
            raise AssertionError("an image was read")

    teachers._images = Unreadable()
    with pytest.raises(BudgetExceeded):
        answer(teachers, noise_multiplier=0.1)


@pytest.mark.parametrize("how, words", [
    (teaching(new=lambda: nn.BatchNorm1d(3)), "no buffers"),
    (teaching(loss=lambda t, r, rl, i, il: loss(t, r, rl, i, il) * torch.rand(())), "draws random numbers"),
    (teaching(loss=lambda t, r, rl, i, il: t(r, rl)), "one number"),
    (teaching(blame=lambda t, i, il: t(i, il)), "one vector for each input"),
])  # fmt: skip
def test_a_teaching_that_cannot_be_is_refused_before_anything_is_spent(how, words):
    door = make_door(count=COUNT, num_images=COUNT)
    with pytest.raises(UsageError, match=words):
        answer(teachers_of(door, how))
    assert not door.ledger.rows


class Keeping:
    last, is_on = None, True

    def loss(self, teacher, real, real_labels, inputs, labels):
        if self.is_on:
            self.last = real
        return loss(teacher, real, real_labels, inputs, labels)


def test_what_keeps_a_tensor_is_refused_by_the_trial():
    """A loss or a network, in an attribute."""

    class Remembering(Network):
        last = None

        def forward(self, images, labels):
            self.last = images
            return super().forward(images, labels)

    for how in (teaching(loss=Keeping().loss), teaching(new=Remembering)):
        door = make_door(count=COUNT, num_images=COUNT)
        with pytest.raises(UsageError, match="A teacher must keep nothing"):
            answer(teachers_of(door, how))
        assert not door.ledger.rows


def test_what_keeps_images_shuts_the_door():
    keeping = Keeping()
    keeping.is_on = False  # the trial sees nothing of it
    door = make_door(count=COUNT, num_images=COUNT)
    teachers = teachers_of(door, teaching(loss=keeping.loss))
    answer(teachers)
    keeping.is_on = True
    with pytest.raises(UsageError, match="keeps something"):
        answer(teachers)
    with pytest.raises(UsageError, match="no more answers"):
        answer(teachers)


def test_what_was_not_proven_is_refused():
    door = make_door(count=COUNT, num_images=COUNT)
    with pytest.raises(ValueError, match="25 shares are more than 24 units"):
        teachers_of(door, shares=SHARES.at(number=25))
    teachers = teachers_of(door)
    others = (SHARES.at(number=3), SHARES.at(group_key=KEY[::-1].hex()), SHARES.at(votes=INPUTS), sampled(0.5))
    for mechanism in others:
        with pytest.raises(ValueError, match="shares that they were made with"):
            answer(teachers, mechanism=mechanism)
    with pytest.raises(ValueError, match="exact noise"):
        answer(teachers_of(make_door(count=COUNT, num_images=COUNT, exact=True)))
    assert not door.ledger.rows
    with pytest.raises(UsageError, match="16 bytes"):
        SHARES.at(group_key="secret")


def test_teachers_go_on_where_they_were(tmp_path):
    """Their state is private, and survives a crash; teachers of other shares begin again."""

    def again(shares=SHARES):
        door = make_door(count=COUNT, num_images=COUNT)
        door._generator = Noiseless(KEY)
        return teachers_of(door, shares=shares, folder=tmp_path)

    first = again()
    answer(first)
    first.save()
    second = again()
    weights, loaded = (teachers._chunks[0].weights["layer.weight"] for teachers in (first, second))
    assert torch.equal(weights, loaded) and second._rounds == 1
    first._generator, second._generator = Noiseless(KEY), Noiseless(KEY)
    assert torch.equal(answer(first), answer(second)), "the optimizer's state, too"
    assert again(SHARES.at(number=3))._rounds == 0
    assert again(SHARES.at(group_key=KEY[::-1].hex()))._rounds == 0


def test_a_view_sees_one_share():
    """One that follows the batch follows that of its own share alone."""

    def standardised(images):
        return (images - images.mean()) / (images.std() + 0.1)

    images = np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8)
    changed = images.copy()
    changed[7] = 255
    found = []
    for each in (images, changed):
        door = make_door(images=each, num_images=COUNT)
        door._generator = Noiseless(KEY)
        found.append(vectors_of_shares(teachers_of(door, teaching(view=standardised, batch_size=64))))
    moved = (found[0] != found[1]).any(1).numpy()
    assert moved[SHARE[7]] and moved.sum() == 1


def test_an_id_that_was_not_there_at_the_first_start_is_missing(tmp_path):
    """A file that is renamed between two starts would be in two shares: the first one's teacher remembers it."""
    names = [f"a/{number}.png" for number in range(COUNT)]
    renamed = ["b/7.png" if number == 7 else name for number, name in enumerate(names)]
    orders = []
    for each in (names, renamed, names):
        teachers = teachers_of(make_door(count=COUNT, num_images=COUNT, ids=digests_of(each)), folder=tmp_path)
        orders.append(sorted(teachers._order.tolist()))
        teachers.save()
    assert orders[0] == orders[2] == list(range(COUNT)) and orders[1] == [n for n in range(COUNT) if n != 7]


@pytest.mark.parametrize("length", [1e36, 1.3e36, 1.7e36, 2.3e36, 2.9e36])
def test_vectors_of_any_length_are_clipped(length):
    """Far above what float32 can divide by."""

    def long(teacher, inputs, labels):
        return torch.full((INPUTS, 4096), length) + 0 * teacher(inputs, labels)[:, None]

    door = make_door(count=COUNT, num_images=COUNT)
    door._generator = Noiseless(KEY)
    teachers = teachers_of(door, teaching(blame=long))
    chunk, (inputs, labels) = teachers._chunks[0], Student().inputs()
    teachers._shape = teachers._try(inputs, labels)
    norms = teachers._vectors(chunk, inputs, labels, 1e-5).norm(dim=1)
    assert float(norms.max()) <= 1e-5 * (1 + 1e-9) and float(norms.min()) > 0.99e-5


def test_an_error_in_mid_round_shuts_the_door():
    """Whoever catches it may have what the error kept."""
    fail = []

    def failing(teacher, real, real_labels, inputs, labels):
        if fail:
            raise KeyError("seen")
        return loss(teacher, real, real_labels, inputs, labels)

    door = make_door(count=COUNT, num_images=COUNT)
    teachers = teachers_of(door, teaching(loss=failing))
    answer(teachers)
    fail.append(1)
    with pytest.raises(KeyError):
        answer(teachers)
    with pytest.raises(UsageError, match="no more answers"):
        answer(teachers)


def test_what_is_left_on_the_inputs_is_gone():
    """Else the teachers of later shares, or steps, could read it."""
    seen = []

    def leaving(teacher, real, real_labels, inputs, labels):
        seen.append(hasattr(inputs, "left"))
        inputs.left = True
        return loss(teacher, real, real_labels, inputs, labels)

    door = make_door(count=COUNT, num_images=COUNT)
    teachers = teachers_of(door, teaching(loss=leaving))
    inputs, labels = Student().inputs()
    for _ in range(3):
        teachers._learn(teachers._chunks[0], inputs, labels)
    assert seen == [False] * 3


def test_a_teacher_without_a_number_does_not_vote():
    how = teaching(blame=lambda t, i, il: votes(t, i, il) * math.nan, votes=True)
    assert all((each == 0).all() for each in noiseless(how=how))


def test_teachers_of_another_network_begin_again(tmp_path):
    def new():
        network = Network()
        network.more = nn.Linear(2, 2)
        return network

    first = teachers_of(make_door(count=COUNT, num_images=COUNT), folder=tmp_path)
    answer(first)
    first.save()
    other = teachers_of(make_door(count=COUNT, num_images=COUNT), teaching(new=new), folder=tmp_path)
    assert other._rounds == 0
