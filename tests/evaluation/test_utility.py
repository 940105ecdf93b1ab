# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Train on synthetic, test on real: numbers against counting by hand, on real digits."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.evaluation.classifiers import build_classifier, split_for_training
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.report import class_rates
from diffusers_dp.evaluation.utility import measure_utility


NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def digits():
    """Stand-ins for synthetic images, and real ones to test on."""
    return [ImageSet(*load_digits_split(train=train), NAMES) for train in (True, False)]


def measured(*sets, **options):
    return [each.accuracy for each in measure_utility(*sets, **options)]


def test_logistic_regression_against_counting_by_hand(digits):
    synthetic, test = digits
    ((accuracy, confusion),) = measure_utility(synthetic, test, classifiers=["logreg"], seeds=(0, 1))
    train, held_out = split_for_training(synthetic)
    predicted = build_classifier("logreg", image_shape=(1, 8, 8)).fit(train).predict(test.images)
    share = (predicted == test.labels).mean()
    assert accuracy.value == pytest.approx(100 * share) and accuracy.value > 90
    assert accuracy.standard_error == pytest.approx(100 * math.sqrt(share * (1 - share) / 360))
    assert accuracy.protocol["standard_error_of"] == "the draw of 360 test images"  # no seed changes it
    precision, recall, _, _ = precision_recall_fscore_support(test.labels, predicted)
    rates = class_rates(confusion.tolist(), NAMES)
    np.testing.assert_allclose([row["precision"] for row in rates], precision)
    np.testing.assert_allclose([row["accuracy"] for row in rates], recall)
    for true, guess in ((3, 3), (8, 1), (1, 8)):
        assert confusion[true, guess] == ((test.labels == true) & (predicted == guess)).sum()
    expected = {"num_train": len(train), "num_validation": len(held_out), "num_test": 360, "seeds": [0]}
    assert expected.items() <= accuracy.protocol.items()
    json.dumps(accuracy.as_json(), allow_nan=False)


def test_an_ensemble_averages_probabilities(digits):
    synthetic, test = digits[0].subset(np.arange(240)), digits[1]
    (accuracy,) = measured(synthetic, test, classifiers=["mlp"], seeds=(2,), ensemble=3, epochs=8)
    train, rest = split_for_training(synthetic)
    members = [build_classifier("mlp", image_shape=(1, 8, 8), seed=6 + k, epochs=8).fit(train, rest) for k in range(3)]
    mean = np.mean([member.scores(test.images) for member in members], axis=0)
    assert accuracy.value == pytest.approx(100 * (mean.argmax(1) == test.labels).mean())
    assert accuracy.protocol["ensemble"] == 3


def test_validation_images_choose_the_epoch(digits):
    """As published: the last of the epochs that are right about most of them; synthetic images that are left out
    choose nothing."""
    synthetic, (held, test) = (
        digits[0].subset(np.arange(240)),
        (digits[1].subset(part) for part in np.split(np.arange(360), 2)),
    )
    (accuracy,) = measured(synthetic, test, classifiers=["mlp"], epochs=12, validation=held)
    train, _ = split_for_training(synthetic)
    right = []
    for epochs in range(1, 13):
        fitted = build_classifier("mlp", image_shape=(1, 8, 8), epochs=epochs).fit(train)
        right.append((fitted.predict(held.images) == held.labels).sum())
    best = 12 - int(np.argmax(right[::-1]))
    assert accuracy.protocol["chosen_epochs"] == [best] and accuracy.protocol["selection"] == "validation"
    fitted = build_classifier("mlp", image_shape=(1, 8, 8), epochs=best).fit(train)
    assert accuracy.value == pytest.approx(100 * (fitted.predict(test.images) == test.labels).mean())


def test_the_test_images_choose_nothing(digits):
    """Shuffled labels of the test images change the accuracy, and neither the epoch nor the seeds."""
    small = digits[0].subset(np.arange(120))
    shuffled = replace(digits[1], labels=np.random.default_rng(0).permutation(digits[1].labels))
    epochs = [
        measured(small, test, classifiers=["mlp"], epochs=12)[0].protocol["chosen_epochs"]
        for test in (digits[1], shuffled)
    ]
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize(
    ("count", "size", "train", "rest"),
    [
        (60_000, None, 55_000, 5_000),
        (63_000, None, 55_000, 8_000),  # as three GPUs draw
        (120_000, None, 55_000, 65_000),
        (12_000, None, 11_000, 1_000),
        (120_000, 24_000, 22_000, 2_000),
        (120_000, 96_000, 88_000, 8_000),  # a curve over sizes would be flat from 60,000 on
        (2, None, 1, 1),
    ],
)
def test_the_split_is_the_published_one(count, size, train, rest):
    images = ImageSet(np.arange(count).astype(np.uint8).reshape(-1, 1, 1, 1), np.arange(count))
    first, second = split_for_training(images, size)
    assert (len(first), len(second)) == (train, rest)
    order = np.random.default_rng(0).permutation(count)
    np.testing.assert_array_equal(np.concatenate([first.labels, second.labels]), order[: size or count])
    np.testing.assert_array_equal(first.images.ravel(), first.labels.astype(np.uint8))
