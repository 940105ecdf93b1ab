# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mode images: what one image can add to a histogram, answers against a histogram by hand, and what is public about
them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.central_images import ModeImages, small_shape
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import CLASSES, KEY, make_ledger


NUM_IMAGES = 24


def make_images(shape, count=NUM_IMAGES):
    """Noise in which 0, 255 and the borders of bins are common."""
    rng = np.random.default_rng(0)
    common = rng.choice([0, 1, 51, 63, 64, 102, 127, 128, 191, 254, 255], (count, *shape)).astype(np.uint8)
    return np.where(rng.random((count, *shape)) < 0.5, common, rng.integers(0, 256, (count, *shape), dtype=np.uint8))


def ask(images, labels="round", *, missing=(), class_names=CLASSES, bins=4, sigma=1e-4, rate=1.0, repeats=1, **other):
    """The answer, of a door with a known source of noise."""
    readable = np.ones(len(images), dtype=bool)
    readable[list(missing)] = False
    labels = np.arange(len(images)) % 3 if isinstance(labels, str) else labels
    ledger, shape = make_ledger(NUM_IMAGES), images.shape[1:]
    door = SensitiveImages(
        images, labels, readable, num_images=NUM_IMAGES, image_shape=shape, ledger=ledger, class_names=class_names,
        **other,
    )  # fmt: skip
    door._generator = PrivateGenerator(KEY)
    query = ModeImages(image_shape=shape, num_bins=bins, sample_rate=rate, repeats=repeats)
    sums = query.ask(door, query.features, noise_multiplier=sigma)
    divided = sums / query.normaliser(NUM_IMAGES, sums.shape[1])
    return divided.unflatten(2, (*small_shape(shape), bins)), ledger.rows[0]


def histogram_by_hand(images, bins):
    """DP-FETA Section 3.1.2, image by image and value by value, in whole numbers: bin k (from 1) holds ((k-1)
    255/bins, k 255/bins], and 0 falls into the first."""
    counts = np.zeros((*images.shape[1:], bins))
    for image in images:
        for place in np.ndindex(*image.shape):
            value = int(image[place])
            k = next(k for k in range(1, bins + 1) if value * bins <= k * 255)
            counts[(*place, k - 1)] += 1
    return torch.from_numpy(counts).float()


@pytest.mark.parametrize(("shape", "stride"), [((1, 8, 8), 1), ((1, 28, 28), 2), ((3, 9, 9), 1), ((1, 64, 64), 4)])
@pytest.mark.parametrize("bins", [2, 5, 16])
def test_the_answer_is_the_histogram(shape, stride, bins):
    """With hardly any noise, for each class, over the expected number of its images, at the places that the mean image
    has."""
    images = make_images(shape, 6)
    answer, row = ask(images, np.array([0, 0, 0, 0, 2, 2]), bins=bins)
    small = images[:, :, ::stride, ::stride]
    assert answer.shape == (1, 3, *small.shape[1:], bins) and answer.dtype == torch.float32
    for label, members in ((0, small[:4]), (1, small[:0]), (2, small[4:])):
        assert torch.allclose(answer[0, label] * NUM_IMAGES / 3, histogram_by_hand(members, bins), atol=1e-2)
    assert row["query"]["stride"] == stride


@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=st.integers(0, 255), bins=st.integers(2, 256))
def test_every_value_falls_into_one_bin(value, bins):
    """Whatever float32 makes of value / 255 * bins."""
    answer, _ = ask(np.full((1, 1, 2, 2), value, dtype=np.uint8), None, class_names=None, bins=bins)
    votes = (answer[0, 0] * NUM_IMAGES).round()
    assert torch.equal(votes.sum(-1), torch.ones(1, 2, 2))
    assert votes[0, 0, 0].argmax() == next(k for k in range(bins) if value * bins <= (k + 1) * 255)


@pytest.mark.parametrize(("shape", "d"), [((1, 8, 8), 64), ((1, 28, 28), 196), ((3, 32, 32), 768)])
def test_one_image_adds_a_vote_per_value(shape, d):
    """Norm sqrt(d): the bound, which every image reaches, the black one too; nothing is scaled down by clipping."""
    images = make_images(shape, 3)
    images[1] = 0
    everybody, row = ask(images)
    assert row["query"]["clip_norm"] == row["query"]["sensitivity"] == pytest.approx(math.sqrt(d))
    for record in range(3):
        without, same = ask(images, missing=[record])
        moved = (everybody - without) * NUM_IMAGES / 3
        assert moved.norm().item() == pytest.approx(math.sqrt(d), rel=1e-4)
        assert [part.abs().max().item() > 0.5 for part in moved[0]] == [row == record for row in range(3)]
        assert same == row


def test_what_is_public_does_not_depend_on_what_is_there():
    """Neither shape nor divisor nor the ledger's row: not on how many images a class has, or a sample."""
    images = make_images((1, 8, 8))
    rows, shapes = [], []
    for there, missing in ((images, ()), (images, [3]), (images[:-1], ()), (images, range(NUM_IMAGES))):
        answer, row = ask(there, missing=missing, rate=0.5, sigma=2.0, repeats=2)
        rows.append(row)
        shapes.append((answer.shape, answer.dtype))
    assert all(row == rows[0] for row in rows) and all(shape == shapes[0] for shape in shapes)
    assert rows[0]["stage"] == "mode_images" and rows[0]["partition"] == "label" and rows[0]["steps_reserved"] == 2
    assert rows[0]["query"] == {
        "sensitivity": 8.0, "clip_norm": 8.0, "normaliser": 0.5 * NUM_IMAGES / 3, "stride": 1, "num_bins": 4,
    }  # fmt: skip


def test_the_noise_is_that_of_the_clip_norm():
    """sigma sqrt(d), over the expected number, in every bin, and other noise for each of them and each time."""
    nobody, _ = ask(make_images((1, 8, 8)), missing=range(NUM_IMAGES), rate=0.5, sigma=3.0, repeats=20)
    assert nobody.std().item() == pytest.approx(3.0 * 8 / (0.5 * NUM_IMAGES / 3), rel=0.02)
    flat = nobody.flatten(2).flatten(0, 1)
    assert (torch.corrcoef(flat) - torch.eye(60)).abs().max() < 0.35
    by_bin = nobody.flatten(0, 4).T
    assert (torch.corrcoef(by_bin) - torch.eye(4)).abs().max() < 0.1


def test_the_sum_is_that_of_its_images():
    images = make_images((1, 8, 8))
    everybody = set(range(NUM_IMAGES))
    nobody, _ = ask(images, missing=everybody)
    alone = sum(ask(images, missing=everybody - {record})[0] - nobody for record in everybody)
    assert torch.allclose(ask(images)[0] - nobody, alone, atol=1e-4) and alone.max() > 0.5


def test_images_without_classes():
    images = make_images((1, 8, 8))
    answer, row = ask(images, None, class_names=None)
    assert answer.shape[:2] == (1, 1) and row["partition"] is None and row["query"]["normaliser"] == NUM_IMAGES
    assert torch.allclose(answer[0, 0] * NUM_IMAGES, histogram_by_hand(images, 4), atol=1e-2)


@pytest.mark.parametrize(("bins", "values"), [(2, [0.25, 0.75]), (5, [0.1, 0.3, 0.5, 0.7, 0.9]), (16, None)])
def test_the_mode_is_the_middle_of_the_fullest_bin(bins, values):
    """DP-FETA Equation 7, with p_max = 1."""
    values = values or [(k + 0.5) / 16 for k in range(16)]
    histograms = torch.full((2, 3, 1, 2, bins, bins), -1.0)  # the k-th column votes for bin k
    histograms[..., range(bins), range(bins)] = 0.5
    query = ModeImages(image_shape=(1, 2, bins), num_bins=bins)
    found = query.finish(histograms.flatten(2), NUM_IMAGES, 1.0)
    assert found.shape == (2, 3, 1, 2, bins) and found.dtype == torch.float32
    assert torch.allclose(found, torch.tensor(values).expand(2, 3, 1, 2, bins))


def test_the_example_of_the_paper():
    """Figure 2: of 1, 3, 3, 4 in [0, 4], with two bins, the mode is 3."""
    images = (np.array([1, 3, 3, 4]) * 255 / 4).round().astype(np.uint8).reshape(4, 1, 1, 1)
    answer, _ = ask(images, None, class_names=None, bins=2)
    assert (answer * NUM_IMAGES).flatten().round().tolist() == [1, 3]
    query = ModeImages(image_shape=(1, 1, 1), num_bins=2)
    assert 4 * query.finish(answer.flatten(2), NUM_IMAGES, 1.0).item() == 3
