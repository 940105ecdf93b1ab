# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The door: what one image can change, what is written before anything is read, and what never comes out."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from tqdm.auto import tqdm

from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import BudgetExceeded, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.models.denoiser import DDPMDenoiser, DDPMLoss, EDMDenoiser, EDMLoss, linear_schedule
from diffusers_dp.models.row_augmentation import AugmentedLoss
from diffusers_dp.privacy import sensitive
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.queries.frequency import FrequencyFeatures, RandomFourierFeatures
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.randomness.timestep_mixture import TimestepMixture
from support.doors import CLASSES, KEY, NUM_IMAGES, SHAPE, make_door, make_ledger, put
from support.few import few
from support.models import convolutional_unet


QUERY = sampled(1.0, 2.0, by_label=True)
MANY = settings(max_examples=60, deadline=None, derandomize=True)
WORST = [0.0, 1.0, -5.0, 1e-30, 1e18, 1e30, -3e38, math.inf, -math.inf, math.nan]


def pixels(x, labels=None):
    return x.flatten(1)


def worst_features(x, labels):
    """Record by record whatever is worst for a sum."""
    kinds = (x[:, 0, 0, 0] * 255).round().long() % len(WORST)
    return pixels(x) * torch.tensor(WORST)[kinds][:, None]


def frequency_features(number=20):
    return FrequencyFeatures(feature_map=RandomFourierFeatures(SHAPE, number, 10.0, 3))


def ask(door, fn=pixels, **changes):
    arguments = {"mechanism": QUERY, "clip_norm": 1.0, "name": "query"}
    arguments |= {"ledger": make_ledger(), "generator": PrivateGenerator(KEY)}
    return put(door, "noisy_sum", fn, **{**arguments, **changes})


def distance(answer, other):
    return (answer - other).double().norm().item()


# One-shot queries.


@given(
    kinds=st.lists(st.integers(0, len(WORST) - 1), min_size=NUM_IMAGES, max_size=NUM_IMAGES),
    record=st.integers(0, NUM_IMAGES - 1),
    clip_norm=st.sampled_from([1e-3, 1.0, 40.0]),
    by_label=st.booleans(),
    sample_rate=st.sampled_from([1.0, 0.5]),
)
@MANY
def test_one_record_moves_an_answer_by_the_clip_norm_at_most(kinds, record, clip_norm, by_label, sample_rate):
    """Under the same noise and sample; each class is a row, and an image lies in one."""
    answers = [
        ask(
            make_door(missing, kinds=kinds), worst_features,
            clip_norm=clip_norm, mechanism=sampled(sample_rate, 2.0, by_label=by_label),
        )
        for missing in ((), (record,))
    ]  # fmt: skip
    assert all(torch.isfinite(answer).all() for answer in answers)
    assert distance(*answers) <= clip_norm * (1 + 1e-4)


def test_the_bound_is_reached():
    """A quiet query would satisfy the test above by answering nothing."""
    assert distance(ask(make_door()), ask(make_door([4]))) == pytest.approx(1.0, abs=1e-4)
    small = ask(make_door(), clip_norm=1e3), ask(make_door([4]), clip_norm=1e3)
    image = make_door()._records.images[4].float() / 255
    assert distance(*small) == pytest.approx(image.norm().item(), rel=1e-2)


@pytest.mark.parametrize("record", [0, 4, 11])
def test_a_record_changes_the_row_of_its_class_alone(record):
    """Bitwise: parallel composition rests on it."""
    changed = (ask(make_door()) != ask(make_door([record])))[0].any(1)
    assert changed.tolist() == [record % 3 == row for row in range(3)]


def test_unreadable_and_undeclared_records_contribute_zero():
    """Declared but absent, and present but unreadable, are the same."""
    absent = ask(make_door(count=10))
    unreadable = ask(make_door([10, 11]))
    assert torch.equal(absent, unreadable)
    assert torch.equal(ask(make_door(range(NUM_IMAGES))), ask(make_door(count=0)))


def test_a_class_without_images_is_pure_noise():
    """Of the standard deviation that was asked for; the same for a class with images, once their sum is taken off."""
    labels = np.zeros(NUM_IMAGES, dtype=np.int64)
    arguments = {"repeats": 50, "mechanism": QUERY.with_noise(3.0), "clip_norm": 0.5}
    answer = ask(make_door(labels=labels), **arguments)
    empty = ask(make_door(range(NUM_IMAGES)), **arguments)
    assert answer.shape == (50, 3, 64)
    assert torch.equal(answer[:, 1:], empty[:, 1:]) and not torch.equal(answer[:, 0], empty[:, 0])
    for row in range(3):
        assert empty[:, row].std().item() == pytest.approx(1.5, rel=0.05)
        assert abs(empty[:, row].mean().item()) < 5 * 1.5 / 3200**0.5
    signal = (answer - empty)[:, 0]
    assert torch.allclose(signal, signal[:1].expand_as(signal), atol=1e-4)


def test_repeats_are_independent_asks():
    """Each with noise of its own and a sample of its own."""
    noise = ask(make_door(range(NUM_IMAGES)), repeats=20, mechanism=sampled(1.0, 2.0))[:, 0]
    assert (torch.corrcoef(noise) - torch.eye(20)).abs().max() < 0.6
    ledger = make_ledger()
    counts = ask(
        make_door(), lambda x, _: torch.ones(len(x), 1),
        repeats=40, mechanism=sampled(0.5, 1e-3), ledger=ledger,
    ).flatten()  # fmt: skip
    assert len(counts.round().unique()) > 4 and 4.5 < counts.mean() < 7.5
    assert [(row["steps_reserved"], row["steps_executed"]) for row in ledger.rows] == [(40, 40)]


@pytest.mark.parametrize("labels", [None, "round"])
def test_images_without_classes(labels):
    """No label set: one row for all, even when asked by label."""
    ledger = make_ledger()
    answer = ask(make_door(labels=labels, class_names=None), ledger=ledger)
    assert answer.shape == (1, 1, 64) and ledger.rows[0]["partition"] is None
    assert torch.equal(answer, ask(make_door(), mechanism=sampled(1.0, 2.0)))


def test_a_single_class():
    """A row like that of no classes; whoever has another label contributes zero."""
    labels = np.zeros(NUM_IMAGES, dtype=np.int64)
    labels[5] = 1
    answer = ask(make_door(labels=labels, class_names=("a",)))
    assert answer.shape == (1, 1, 64) and torch.equal(answer, ask(make_door([5], labels=None, class_names=None)))


def test_public_facts_do_not_depend_on_what_is_there():
    """The ledger's row, the answer's shape and the divisor are the same with an image less."""
    rows, shapes, answers = [], [], []
    doors = make_door(), make_door([3]), make_door([NUM_IMAGES - 1]), make_door(count=NUM_IMAGES - 1)
    for door in doors:
        ledger, door._generator = door.ledger, PrivateGenerator(KEY)
        central_images = MeanImages(image_shape=SHAPE, sample_rate=0.5, repeats=2)
        central = central_images.answer(door, noise_multiplier=2.0)
        embedding = frequency_features().answer(door, noise_multiplier=2.0)
        rows.append(ledger.rows)
        shapes.append((central.shape, embedding.shape, central.dtype, embedding.dtype))
        answers.append((central, embedding))
    assert all(torch.equal(broken, absent) for broken, absent in zip(*answers[2:], strict=True))
    assert all(row == rows[0] for row in rows) and all(shape == shapes[0] for shape in shapes)
    assert rows[0][0]["query"]["normaliser"] == 0.5 * NUM_IMAGES / 3
    assert rows[0][1]["query"]["normaliser"] == NUM_IMAGES
    assert [row["partition"] for row in rows[0]] == ["label", "label"]


def test_a_bar_counts_the_declared_images_and_none_tells_how_many_were_drawn(monkeypatch, capsys):
    monkeypatch.setattr(sensitive, "BAR_AFTER_SECONDS", 0)
    monkeypatch.setattr(Processes, "bar", lambda self, **options: tqdm(mininterval=0, **options))
    ask(make_door(count=NUM_IMAGES - 3))
    assert f"Asking query: 100%|██████████| {NUM_IMAGES}/{NUM_IMAGES}" in capsys.readouterr().err
    ask(make_door(), mechanism=sampled(0.5, 2.0, by_label=True))
    images, units = np.zeros((5, *SHAPE), np.uint8), np.array([0, 0, 1, 2, 2])
    of_units = SensitiveImages(
        images, num_images=5, image_shape=SHAPE, ledger=make_ledger(), units=units, num_units=NUM_IMAGES
    )
    ask(of_units, mechanism=sampled(1.0, 2.0))
    assert "Asking" not in capsys.readouterr().err


# The ledger comes first.


class Witness:
    """A query that notes what the ledger says when it meets an image of the door, and not one of a trial."""

    def __init__(self, ledger):
        self.ledger, self.seen = ledger, []
        self.images = {image.numpy().tobytes() for image in make_door()._records.images}

    def __call__(self, x, labels):
        if any(image.numpy().tobytes() in self.images for image in x.mul(255).round().byte()):
            self.seen.append([(row["stage"], row["state"], row["steps_executed"]) for row in self.ledger.rows])
        return pixels(x)


def test_a_query_over_the_budget_is_not_asked():
    witness = Witness(make_ledger(target_epsilon=0.1))
    generator = PrivateGenerator(KEY)
    with pytest.raises(BudgetExceeded):
        ask(make_door(), witness, ledger=witness.ledger, generator=generator)
    assert not witness.seen and not witness.ledger.rows
    assert torch.equal(generator.normal((3,), 1.0), PrivateGenerator(KEY).normal((3,), 1.0))  # nothing was drawn


# The two queries of FETA-Pro. Under the same noise, what a dataset adds to an empty one is the sum without noise.


def test_central_images():
    """Clipped to sqrt(d)/2, divided by qN/classes, one row per class."""
    white = np.full((NUM_IMAGES, *SHAPE), 255, dtype=np.uint8)
    labels = np.array([0] * 6 + [1] * 4 + [2] * 2)
    ledger, answers = make_ledger(), []
    for readable in (np.ones(NUM_IMAGES, dtype=bool), np.zeros(NUM_IMAGES, dtype=bool)):
        door = SensitiveImages(
            white, labels, readable, num_images=NUM_IMAGES, image_shape=SHAPE, ledger=ledger, class_names=CLASSES
        )
        door._generator = PrivateGenerator(KEY)
        query = MeanImages(image_shape=SHAPE, repeats=2)
        answers.append(query.answer(door, noise_multiplier=0.01))
    assert answers[0].shape == (2, 3, 1, 8, 8)
    signal = answers[0] - answers[1]
    for row, count in enumerate((6, 4, 2)):  # a white image of norm 8 becomes grey, of norm 4
        assert torch.allclose(signal[:, row], torch.full((2, 1, 8, 8), count * 0.5 / 4), atol=1e-5)
    assert answers[1].std().item() == pytest.approx(0.01 * 4 / 4, rel=0.1)
    assert ledger.rows[0]["query"] == {"sensitivity": 4.0, "clip_norm": 4.0, "normaliser": 4.0, "stride": 1}
    assert ledger.rows[0]["steps_reserved"] == 2


def test_frequency_features():
    """Each of norm exactly 1, so clipping changes none; divided by N; a class keeps its weight."""
    query = frequency_features(40)
    features, images = query.feature_map, make_door()._records.images.float() / 255
    assert torch.allclose(features(images).norm(dim=1), torch.ones(NUM_IMAGES), atol=1e-6)
    assert torch.allclose(features(torch.zeros(1, *SHAPE)).norm(), torch.ones(()), atol=1e-6)
    answers = []
    for missing in ((), range(NUM_IMAGES)):
        door = make_door(missing)
        door._generator = PrivateGenerator(KEY)
        answers.append(query.answer(door, noise_multiplier=0.5))
    expected = torch.stack([features(images[row::3]).sum(0) for row in range(3)]) / NUM_IMAGES
    assert torch.allclose(answers[0] - answers[1], expected, atol=1e-5)
    assert answers[1].std().item() == pytest.approx(0.5 / NUM_IMAGES, rel=0.2)
    assert door.ledger.rows[0]["query"] == {
        "sensitivity": 1.0, "clip_norm": 1.0, "normaliser": NUM_IMAGES, "num_features": 40,
    }  # fmt: skip


@pytest.mark.parametrize(
    "query", [MeanImages(image_shape=SHAPE), frequency_features(40)], ids=lambda query: query.name
)
def test_an_answer_is_the_sum_of_answers_to_single_images(query):
    """No image is scaled, shifted or clipped by another one: neither by the brightest nor by the longest in its
    batch."""

    def answer(missing):
        door = make_door(missing)
        images = door._records.images
        images[:] = images // 3 * torch.linspace(0.1, 1, NUM_IMAGES)[:, None, None, None]  # none is white
        door._generator = PrivateGenerator(KEY)
        return query.answer(door, noise_multiplier=0.01)

    everybody = set(range(NUM_IMAGES))
    nobody = answer(everybody)
    alone = sum(answer(everybody - {record}) - nobody for record in everybody)
    assert torch.allclose(answer(()) - nobody, alone, atol=1e-5)
    assert alone.abs().max() > 1e-2


# Gradients.


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.GroupNorm(3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(27, 2))


def worst_loss(model, rows, labels, generator):
    """Deterministic; the first pixel says by which of `WORST` the loss of a row is multiplied."""
    kinds = ((rows[:, 0, 0, 0] + 1) * 127.5).round().long() % len(WORST)
    return model(rows).square().sum(1) * torch.tensor(WORST)[kinds]


def gradient(door, row_loss=worst_loss, model=None, **changes):
    arguments = {"mechanism": sampled(1.0, 2.0), "max_grad_norm": 0.1, "normaliser": 4.0}
    arguments |= {"noise_multiplicity": 1, "max_physical_batch_size": 5, "ledger": make_ledger()}
    arguments |= {"generator": PrivateGenerator(KEY)}
    return put(door, "noisy_gradient", model or small_net(), row_loss, **{**arguments, **changes})


def flat(gradients):
    return torch.cat([part.flatten() for part in gradients.values()])


def test_half_precision_keeps_the_bound():
    """Under bfloat16 autocast, inside the loss and around the door, one record moves the gradient by C / normaliser at
    most."""

    def half(model, rows, labels, generator):
        with torch.autocast("cpu", torch.bfloat16):
            return worst_loss(model, rows, labels, generator).float()

    kinds = [1, 2, 4, 5, 9] + [1] * (
        NUM_IMAGES - 5
    )  # among them those whose gradient is clipped, overflows or is not a number
    for record in range(5):
        for outside in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=outside):
                answers = [
                    flat(gradient(make_door(missing, kinds=kinds), half, noise_multiplicity=4))
                    for missing in ((), (record,))
                ]
            assert torch.isfinite(answers[0]).all() and answers[0].dtype == torch.float32
            assert distance(*answers) <= 0.1 / 4.0 * (1 + 1e-4)
            if record < 2:
                assert distance(*answers) > 0.1 / 4.0 * 0.5  # it does count


@given(
    kinds=st.lists(st.integers(0, len(WORST) - 1), min_size=NUM_IMAGES, max_size=NUM_IMAGES),
    record=st.integers(0, NUM_IMAGES - 1),
    noise_multiplicity=st.sampled_from([1, 4]),
    batch=st.sampled_from([1, 5, 100]),
    sample_rate=st.sampled_from([1.0, 0.5]),
)
@example(kinds=[1] * 5 + [4] + [1] * 6, record=5, noise_multiplicity=4, batch=100, sample_rate=1.0)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_one_record_moves_a_gradient_by_the_clip_norm_over_the_normaliser(
    kinds, record, noise_multiplicity, batch, sample_rate
):
    answers = [
        flat(
            gradient(
                make_door(missing, kinds=kinds), mechanism=sampled(sample_rate, 2.0),
                noise_multiplicity=noise_multiplicity, max_physical_batch_size=batch,
            )
        )
        for missing in ((), (record,))
    ]  # fmt: skip
    assert torch.isfinite(answers[0]).all()
    assert distance(*answers) <= 0.1 / 4.0 * (1 + 1e-3)


@pytest.mark.parametrize(
    ("record", "changes"),
    few(
        [
            (0, {}),
            (5, {}),
            (0, {"mechanism": sampled(0.5, 2.0)}),
            (0, {"max_physical_batch_size": 2}),
            (0, {"noise_multiplicity": 3}),
        ],
        2,
        4,
    ),
)
@pytest.mark.parametrize("objective", ["edm", "ddpm"])
def test_one_record_moves_nobody_elses_draws(record, objective, changes):
    """The training loss draws noise levels, noise, dropped labels, flips and shifts. A record that is zeroed out must
    not shift the draws of the rows after it, nor of the next step."""
    unet = convolutional_unet()
    denoiser, loss = EDMDenoiser(unet), EDMLoss(0.3)
    if objective == "ddpm":
        mixture = TimestepMixture([0.0, 300.0, 1000.0], [0.2, 0.8])
        denoiser = DDPMDenoiser(unet, linear_schedule())
        loss = AugmentedLoss(DDPMLoss(0.3, mixture), ["flip", "crop"])
    answers = []
    for missing in ((), (record,)):
        door, generator = make_door(missing), PrivateGenerator(KEY)
        steps = [
            flat(gradient(door, loss, denoiser, max_grad_norm=1e-3, generator=generator, **changes)) for _ in range(3)
        ]
        answers.append(steps)
    moved = [distance(*pair) for pair in zip(*answers, strict=True)]
    assert max(moved) <= 1e-3 / 4.0 * (1 + 1e-3)
    assert max(moved) > 1e-3 / 4.0 * 0.5  # it did take part


def test_records_that_are_absent_keep_their_place():
    """n < N: the images that were declared but are not there have rows of their own, as zeroed ones have."""
    rows = [
        flat(gradient(make_door(missing, count=count), lambda m, x, y, g: m(x).square().sum(1) * noise_of(g, x)))
        for missing, count in (((10, 11), NUM_IMAGES), ((), NUM_IMAGES - 2))
    ]
    assert torch.equal(*rows)


def noise_of(generator, rows):
    return generator.normal((len(rows),), 1.0).abs()


@pytest.mark.usefixtures("watching")
def test_draws_of_the_loss_are_secret_and_leave_the_public_seed_alone():
    """With a public `--seed` behind the loss's draws, whoever knows it could tell who was sampled."""
    drawn, model = [], small_net()

    def loss(model, rows, labels, generator):
        drawn.append((torch.rand(3), generator.normal((3,), 1.0)))
        return worst_loss(model, rows, labels, generator)

    for door in (make_door(), make_door()):
        torch.manual_seed(0)
        expected = torch.rand(1)
        torch.manual_seed(0)
        gradient(door, loss, model, generator=None)
        assert torch.equal(torch.rand(1), expected)
    first, *others = map(torch.cat, drawn)
    assert others and not any(torch.isclose(first, other).any() for other in others)


@pytest.mark.parametrize("noise_multiplicity", [1, 4, 32])
def test_the_gradient_bound_is_reached(noise_multiplicity):
    kinds = [1] * NUM_IMAGES
    kinds[5] = 2  # -5 times the loss, which sums against the others
    answers = [
        flat(gradient(make_door(missing, kinds=kinds), noise_multiplicity=noise_multiplicity))
        for missing in ((), (5,))
    ]
    assert distance(*answers) == pytest.approx(0.1 / 4.0, rel=1e-3)


@pytest.mark.usefixtures("watching")
def test_an_empty_sample_takes_the_same_path():
    """One step is taken and one noise drawn; no forward pass is needed for it."""
    seen, ledger, model = [], make_ledger(), small_net()

    def loss(model, rows, labels, generator):
        seen.append(len(rows))
        return worst_loss(model, rows, labels, generator)

    empty = gradient(make_door(), loss, model, mechanism=sampled(1e-9, 2.0), ledger=ledger)
    assert not seen and [row["steps_executed"] for row in ledger.rows] == [1]
    full = gradient(make_door(), loss, model)
    assert list(empty) == list(full) == [name for name, _ in model.named_parameters()]
    assert all(empty[name].shape == part.shape and empty[name].dtype == part.dtype for name, part in full.items())
    assert flat(empty).count_nonzero() == len(flat(empty)) and flat(empty).abs().max() < 0.05 * 6


@pytest.mark.usefixtures("watching")
def test_a_step_is_taken_before_an_image_is_read():
    ledger, seen = make_ledger(), []

    def loss(model, rows, labels, generator):
        seen.append([(row["stage"], row["steps_reserved"], row["steps_executed"]) for row in ledger.rows])
        assert len(rows) == len(labels) in (10, 4) and -1 <= rows.min() < 0 < rows.max() <= 1
        return worst_loss(model, rows, labels, generator)

    arguments = {"ledger": ledger, "reserve_steps": 3, "max_physical_batch_size": 5, "noise_multiplicity": 2}
    gradient(make_door([0, 1]), loss, **arguments)
    gradient(make_door([0, 1]), loss, **arguments)
    assert seen == [[("dp_sgd", 3, 1)]] * 3 + [[("dp_sgd", 3, 2)]] * 3
    assert ledger.rows[0]["query"]["normaliser"] == 4.0 and ledger.rows[0]["query"]["sensitivity"] == 0.1


@pytest.mark.usefixtures("watching")
def test_a_step_over_the_budget_is_not_taken():
    seen, ledger = [], make_ledger(target_epsilon=0.1)
    with pytest.raises(BudgetExceeded):
        gradient(make_door(), lambda *_: seen.append(1), ledger=ledger)
    assert not seen and not ledger.rows


# The object itself.


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_door_is_never_serialised(copier):
    with pytest.raises(TypeError, match="never serialised"):
        copier(make_door())


def test_no_public_name_gives_an_image():
    door = make_door()
    public = {name: getattr(door, name) for name in dir(door) if not name.startswith("_")}
    facts = {name: value for name, value in public.items() if not callable(value)}
    assert facts == {
        "num_units": NUM_IMAGES, "image_shape": SHAPE, "class_names": list(CLASSES), "device": torch.device("cpu"),
        "max_images_per_unit": 8, "processes": door.processes, "ledger": door.ledger,
    }  # fmt: skip
    assert set(public) - set(facts) == {"noisy_sum", "noisy_gradient", "map"}
    for name in ("__len__", "__getitem__", "__iter__", "__array__"):
        assert not hasattr(door, name)
    assert "tensor" not in repr(door)


def test_more_images_or_other_shapes_than_declared_are_refused():
    with pytest.raises(UsageError, match="--num_train_images"):
        make_door(num_images=NUM_IMAGES - 1)
    with pytest.raises(UsageError, match="--resolution"):
        SensitiveImages(np.zeros((2, 1, 9, 9), np.uint8), num_images=2, image_shape=SHAPE, ledger=make_ledger(2))


def test_a_label_outside_the_label_set_is_a_damaged_record():
    images = np.full((3, 1, 4, 4), 255, dtype=np.uint8)
    facts = {"num_images": 3, "image_shape": (1, 4, 4), "class_names": ["a", "b"], "ledger": make_ledger(3)}
    answers = [
        put(
            SensitiveImages(images, np.array(labels), None if readable is None else np.array(readable), **facts),
            "noisy_sum",
            lambda x, _: x.flatten(1),
            sampled(1.0, 5.0, by_label=True),
            clip_norm=4.0,
            name="sum",
            generator=PrivateGenerator(bytes(16)),
        )
        for labels, readable in (([0, 5, -1], None), ([0, 0, 0], [True, False, False]))
    ]
    assert torch.equal(*answers)


# Large sums.

LARGE = 2.0**27  # in float32 the next number is 16 away


class TakesAway(PrivateGenerator):
    """In the place of noise: what the one large record added."""

    def normal(self, shape, std, device="cpu"):
        return torch.full(tuple(shape), -LARGE, device=device)


def large_or_one(x, labels=None):
    """`[b, C, H, W]` to `[b, 1]`: a white image adds 2^27, every other one 1."""
    return torch.where(x.flatten(1).amin(1, keepdim=True) == 1, LARGE, 1.0)


@pytest.mark.parametrize("units", [None, np.arange(8) // 2], ids=["images", "units"])
def test_a_large_sum_loses_none_of_its_terms(units):
    """What one record adds is not rounded away beside a large total, before the noise is on it; of a query and of a
    step, in which the records lie in several physical batches."""
    images = np.zeros((8, 1, 2, 2), dtype=np.uint8)
    images[: 1 if units is None else 2] = 255
    options = {} if units is None else {"units": units, "num_units": 4}
    ledger = make_ledger(8 if units is None else 4)
    door = SensitiveImages(images, num_images=8, image_shape=(1, 2, 2), ledger=ledger, **options)
    door._generator = TakesAway(bytes(16))
    model = nn.Linear(1, 1, bias=False)

    def row_loss(model, rows, labels, generator):
        return model(large_or_one(rows)).squeeze(1)

    answer = door.noisy_sum(large_or_one, sampled(1.0), clip_norm=2 * LARGE, name="x")
    gradient = door.noisy_gradient(
        model, row_loss, sampled(1.0), max_grad_norm=2 * LARGE, normaliser=1.0, noise_multiplicity=1,
        max_physical_batch_size=1,
    )["weight"]  # fmt: skip
    for found in (answer, gradient):
        assert found.dtype == torch.float32
        assert found.item() == door.num_units - 1
