# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A door has one ledger and one source of randomness, and nobody who asks can name another."""

import pytest
import torch
from torch import nn

from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import make_ledger
from support.flags import NUM_IMAGES
from support.images import folder_config, read_images
from support.runs import write_images


SHAPE = (1, 8, 8)
SUM = {"mechanism": sampled(1.0, by_label=True), "clip_norm": 1.0, "name": "sum"}
STEP = {"mechanism": sampled(0.5), "max_grad_norm": 1.0, "normaliser": 15.0, "noise_multiplicity": 1}


def pixels(images, labels=None):
    return images.flatten(1)


def ask_sum(door, **more):
    return door.noisy_sum(pixels, **SUM, **more)


def ask_step(door, **more):
    model = nn.Linear(door.image_shape[0] * door.image_shape[1] ** 2, 1)
    loss = lambda model, rows, labels, generator: model(rows.flatten(1)).squeeze(1)  # noqa: E731
    return door.noisy_gradient(model, loss, max_physical_batch_size=8, **STEP, **more)


def ask_query(door, **more):
    return MeanImages(image_shape=door.image_shape).ask(door, pixels, noise_multiplier=1.0, **more)


def answer_query(door, **more):
    return MeanImages(image_shape=door.image_shape).answer(door, noise_multiplier=1.0, **more)


WAYS = {"sum": ask_sum, "dp_sgd": ask_step, "central_images": ask_query, "an answer": answer_query}


@pytest.fixture
def loaded(tmp_path):
    """Images of a folder, as a run reads them."""
    write_images(tmp_path / "images")
    facts, arrays = read_images(
        folder_config(tmp_path / "images", class_names="left,empty,right", num_channels=1), tmp_path
    )

    def door(ledger):
        return SensitiveImages(
            arrays.images, arrays.labels, arrays.readable, num_images=facts.num_images, image_shape=facts.image_shape,
            ledger=ledger, class_names=facts.class_names,
        )  # fmt: skip

    return door


@pytest.mark.parametrize("way", WAYS)
def test_no_answer_is_charged_to_another_ledger(way, loaded):
    """Such an answer would have no row in the run's: its epsilon would be nobody's."""
    ledger, other = make_ledger(NUM_IMAGES), make_ledger(NUM_IMAGES)
    door = loaded(ledger)
    with pytest.raises(TypeError, match="ledger"):
        WAYS[way](door, ledger=other)
    with pytest.raises(AttributeError):
        door.ledger = other
    assert other.rows == [] and ledger.rows == []
    WAYS[way](door)
    assert [row["steps_executed"] for row in ledger.rows] == [1] and other.rows == []


@pytest.mark.parametrize("way", WAYS)
def test_no_answer_has_its_noise_from_a_source_that_is_given(way, loaded):
    """Whoever held its key could take the noise off again."""
    ledger = make_ledger(NUM_IMAGES)
    with pytest.raises(TypeError, match="generator"):
        WAYS[way](loaded(ledger), generator=PrivateGenerator(bytes(16)))
    assert ledger.rows == []


def test_what_a_mapped_door_answers_is_charged_to_the_same_ledger(loaded, tmp_path):
    ledger = make_ledger(NUM_IMAGES)
    rows = loaded(ledger).map(lambda images: images[:, :, :4, :4], shape=(1, 4, 4), cache=tmp_path, made_of="corner")
    assert rows.ledger is ledger
    ask_sum(rows)
    ask_step(rows)
    assert [row["stage"] for row in ledger.rows] == ["sum", "dp_sgd"]


def test_a_door_needs_a_ledger_and_one_of_its_units():
    images = torch.zeros(2, *SHAPE, dtype=torch.uint8).numpy()
    with pytest.raises(TypeError, match="ledger"):
        SensitiveImages(images, num_images=2, image_shape=SHAPE)
    with pytest.raises(ValueError, match="ledger counts 3 units, but 2"):
        SensitiveImages(images, num_images=2, image_shape=SHAPE, ledger=make_ledger(3))
