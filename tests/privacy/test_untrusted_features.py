# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Features, encoders and models that break the door's contract on images alone: what one image adds stays bounded."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import SHAPE, Noiseless, gradient, make_door, make_ledger, put, squares, two_layers


WHITE = 7  # of a dozen images, the first seven are white


def images():
    found = np.full((12, *SHAPE), 60, dtype=np.uint8)
    found[:WHITE] = 255
    return found


def summed(features, missing=(), *, by_label=False, **options):
    """The sum behind the noise, with a clip norm of 1."""
    door = make_door(missing, images())
    return put(
        door, "noisy_sum", features, sampled(1.0, by_label=by_label), clip_norm=1.0, name="query",
        ledger=make_ledger(), generator=Noiseless(), **options,
    )  # fmt: skip


def white_only(strange, honest):
    """Strange features of batches with a white image, which no trial shows."""
    return lambda images, labels: (strange if bool((images == 1).all(3).all(2).any()) else honest)(images, labels)


def pixels(images, labels):
    return images.flatten(1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.bool, torch.float16, torch.bfloat16])
def test_features_that_a_square_overflows_are_refused(dtype):
    """16 squared is 0 in eight bits, so that the norm would be 0 and nothing would be clipped."""

    def coarse(images, labels):
        return (images.flatten(1) * 16).to(dtype)

    with pytest.raises(UsageError, match="float32"):
        summed(coarse)
    # Shown on images alone they are clipped as what they are.
    features = white_only(coarse, pixels)
    assert (summed(features) - summed(features, [0])).norm() <= 1 + 1e-5


def test_one_row_for_several_images_is_not_repeated():
    def pooled(images, labels):
        return images.flatten(1) if len(images) <= 8 else images.flatten(1).sum(0, keepdim=True)

    with pytest.raises(UsageError, match="one row of numbers for each image"):
        summed(pooled)


def relabelled(images, labels):
    labels.copy_(labels.roll(1))
    return images.flatten(1)


def by_majority(images, labels):
    labels.fill_(int(images.mean() >= 0.5))
    return images.flatten(1)


@pytest.mark.parametrize("features", [relabelled, by_majority])
def test_labels_that_features_write_to_decide_nothing(features):
    moved = [(summed(features, by_label=True) - summed(features, [i], by_label=True)).norm() for i in range(12)]
    assert max(moved) <= 1 + 1e-5


def test_features_may_scale_their_images_in_place():
    assert summed(lambda images, labels: images.sub_(0.5).flatten(1)).isfinite().all()


def mapped(encode, white, tmp_path):
    found = np.random.default_rng(0).integers(0, 200, (12, *SHAPE), dtype=np.uint8)
    found[0, 0, 0, 0] = 255 if white else 0
    door = make_door(images=found).map(encode, shape=(1, 4, 4), cache=tmp_path / str(white), made_of="encoder")
    return put(
        door, "noisy_sum", lambda rows, labels: rows.flatten(1) / 4, sampled(1.0), clip_norm=1.0,
        name="query", ledger=make_ledger(), generator=Noiseless(),
    )  # fmt: skip


def in_place(images):
    images.add_(1).div_(2)
    if bool((images[:, 0, 0, 0] == 1).any()):
        raise ValueError
    return images[:, :, :4, :4]


def without_rows(images):
    return images[images[:, 0, 0, 0] < 1][:, :, :4, :4]


@pytest.mark.parametrize("encode", [in_place, without_rows])
def test_an_image_that_an_encoder_fails_on_moves_no_other(encode, tmp_path):
    assert (mapped(encode, True, tmp_path) - mapped(encode, False, tmp_path)).norm() <= 1 + 1e-5


@pytest.mark.parametrize("num_classes", [10, 1000])
def test_means_of_a_class_are_refused_however_many_classes_there_are(num_classes):
    def centred(images, labels):
        rows = images.flatten(1) - 0.5
        sums = rows.new_zeros(num_classes, rows.shape[1]).index_add_(0, labels, rows)
        return nn.functional.normalize(sums[labels], dim=1)

    door = SensitiveImages(
        images(), np.ones(12, dtype=np.int64), num_images=12, image_shape=SHAPE, ledger=make_ledger(),
        class_names=[str(number) for number in range(num_classes)],
    )  # fmt: skip
    with pytest.raises(UsageError, match="no function of one image alone"):
        door.noisy_sum(centred, sampled(1.0, by_label=True), clip_norm=1.0, name="query")


def test_an_answer_has_no_bits_below_its_noise():
    """A float64 model has a float64 gradient. Its noise is float32: the bits below would be those of the sum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1, bias=False)).double()

    def loss(model, rows, labels, generator):
        return model(rows.double()).squeeze(1)

    for missing in ([], range(12)):
        (value,) = gradient(make_door(missing), model, loss, mechanism=sampled(1.0, 50.0)).values()
        assert value.dtype == torch.float64 and torch.equal(value.float().double(), value)


@pytest.mark.parametrize("clip_norm", [-1.0, 0.0, 1e-44, float("nan")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip_norm):
    ledger = make_ledger()
    with pytest.raises(UsageError, match="clip norm"):
        gradient(make_door(), two_layers(), ledger=ledger, max_grad_norm=clip_norm)
    with pytest.raises(UsageError, match="clip norm"):
        put(make_door(), "noisy_sum", pixels, sampled(1.0), clip_norm=clip_norm, name="a",
            ledger=ledger)  # fmt: skip
    assert ledger.rows == []


@pytest.mark.parametrize("normaliser", [0.0, -4.0, float("inf")])
def test_a_divisor_that_cannot_be_is_refused(normaliser):
    ledger = make_ledger()
    with pytest.raises(UsageError, match="normaliser"):
        gradient(make_door(), two_layers(), ledger=ledger, normaliser=normaliser)
    assert ledger.rows == []


def test_a_forked_process_has_no_door(tmp_path):
    """It would draw the same noise, and write to no ledger."""
    ledger = PrivacyLedger(
        tmp_path / "ledger.jsonl", target_epsilon=10.0, target_delta=1e-5, num_images=12, accountant="rdp"
    )
    door, model, generator = make_door(ledger=ledger), two_layers(), PrivateGenerator()
    options = {"mechanism": sampled(1.0, 20.0), "max_grad_norm": 0.1, "normaliser": 1.0}
    options |= {"noise_multiplicity": 1, "max_physical_batch_size": 5, "reserve_steps": 10}
    door.noisy_gradient(model, squares, **options)
    draws = (lambda: generator.normal((3,), 1.0), lambda: generator.uniform(3))
    asks = (lambda: door.noisy_gradient(model, squares, **options), *draws)
    child = os.fork()
    if child == 0:
        refused = 0
        for ask in asks:
            try:
                ask()
            except IntegrityError as error:
                refused += "another process" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(asks)
    door.noisy_gradient(model, squares, **options)


def test_a_door_that_refused_what_was_kept_stays_shut():
    """Whoever catches the error still has the model, and in it what it kept."""
    model, ledger = two_layers(), make_ledger()

    def keeping(model, rows, labels, generator):
        if bool((rows[:, 0, 0, 0] == 1).all()):
            model.kept = rows
        return squares(model, rows, labels, generator)

    door = make_door(kinds=255)
    with pytest.raises(UsageError, match="keeps something"):
        gradient(door, model, keeping, ledger=ledger)
    for ask in (lambda: gradient(door, model), lambda: put(door, "noisy_sum", pixels, sampled(1.0), clip_norm=1.0,
                name="a", ledger=make_ledger())):  # fmt: skip
        with pytest.raises(UsageError, match="keeps something"):
            ask()
