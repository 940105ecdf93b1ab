# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The downstream classifiers: that they learn, repeat, choose the epoch as published, and bear a class that is not
there."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.evaluation.classifiers import (
    NetworkClassifier,
    build_classifier,
)
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.networks import (
    ResNet,
    Training,
    bottleneck,
)


SHAPE = (1, 8, 8)
NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def digits():
    """Real digits: to train on, to test on."""
    return [ImageSet(*load_digits_split(train=train), NAMES) for train in (True, False)]


def accuracy(classifier, images):
    return (classifier.predict(images.images) == images.labels).mean()


def linear(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), num_classes))


@pytest.mark.parametrize(("name", "epochs", "at_least"), [("logreg", None, 0.94), ("mlp", 30, 0.9), ("cnn", 15, 0.92)])
def test_they_learn_real_digits(digits, name, epochs, at_least):
    train, test = digits
    classifier = build_classifier(name, image_shape=SHAPE, epochs=epochs).fit(train)
    scores = classifier.scores(test.images)
    assert scores.shape == (360, 10) and scores.dtype == np.float64
    np.testing.assert_allclose(scores.sum(1), 1, atol=1e-5)
    predicted = classifier.predict(test.images)
    assert predicted.dtype == np.int64
    np.testing.assert_array_equal(predicted, scores.argmax(1))
    assert accuracy(classifier, test) >= at_least


@pytest.mark.parametrize("name", ["wrn", "resnet", "resnext"])
def test_the_large_networks_train(digits, name):
    """A single step, for time: that the whole path runs and every parameter moves."""
    train = digits[0].subset(np.arange(4))
    training = Training("adam", 0.01, epochs=1, batch_size=4, micro_batches=2)
    build = build_classifier(name, image_shape=SHAPE).build
    if name == "resnext":  # 34 million parameters take too long
        block = functools.partial(bottleneck, groups=2, widen=1)
        build = functools.partial(ResNet, widths=[64, 64, 128, 256], blocks=1, block=block)
    classifier = NetworkClassifier(name, build, training).fit(train)
    with classifier._seeded(0):
        start = classifier.build(SHAPE, 10).state_dict()
    moved = {key for key, value in classifier.network.state_dict().items() if not torch.equal(value, start[key])}
    assert {key for key, _ in classifier.network.named_parameters()} <= moved
    assert classifier.scores(train.images).shape == (4, 10)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_fit_is_repeated_by_its_seed_alone(digits, name):
    train, test = digits[0].subset(np.arange(200)), digits[1]

    def scores(seed, disturbed=False):
        if disturbed:
            torch.manual_seed(99), np.random.seed(99)
        return build_classifier(name, image_shape=SHAPE, seed=seed, epochs=2).fit(train).scores(test.images)

    first = scores(0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    np.testing.assert_array_equal(first, scores(0))
    assert torch.equal(before, torch.get_rng_state())  # nobody else's draws move
    np.testing.assert_array_equal(first, scores(0, disturbed=True))
    assert not np.array_equal(first, scores(1))


class TestPublishedTraining:
    """Each number as in the protocol of the published tables."""

    def test_the_average_of_the_weights_counts(self, digits):
        """One step an epoch, against the recursion written out: what is scored is the average, what is trained on is
        not."""
        train = digits[0].subset(np.arange(50))
        training = Training("sgd", 0.5, epochs=4, batch_size=50)
        classifier = NetworkClassifier("linear", linear, training)
        states = [classifier._state() for _ in classifier._train(train)]
        with classifier._seeded(0):
            network = linear(SHAPE, 10)
        inputs = torch.from_numpy(train.images).float() / 127.5 - 1
        average = network[1].weight.detach().clone()
        for step in range(4):
            network.zero_grad()
            nn.functional.cross_entropy(network(inputs), torch.from_numpy(train.labels)).backward()
            for parameter in network.parameters():
                parameter.data -= 0.5 * parameter.grad
            decay = 0 if step == 0 else min(0.9999, (1 + step) / (10 + step))
            average = decay * average + (1 - decay) * network[1].weight.detach()
            torch.testing.assert_close(states[step]["1.weight"], average, atol=1e-5, rtol=1e-4)


class TestEpochs:
    def test_the_last_of_the_most_accurate_epochs_is_chosen(self, digits):
        train, validation = digits[0].subset(np.arange(60)), digits[1].subset(np.arange(40))
        training = Training("sgd", 3.0, epochs=12, batch_size=20)
        classifier = NetworkClassifier("linear", linear, training).fit(train, validation)
        every = NetworkClassifier("linear", linear, training)
        scores = [every.scores(validation.images) for _ in every._train(train)]
        right = [(each.argmax(1) == validation.labels).sum() for each in scores]
        assert len(set(right)) > 1  # or there was nothing to choose
        chosen = max(np.flatnonzero(np.array(right) == max(right)))
        assert classifier.protocol["chosen_epoch"] == 1 + chosen
        np.testing.assert_array_equal(classifier.scores(validation.images), scores[chosen])
