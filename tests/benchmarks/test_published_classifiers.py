# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The classifiers of DP-Diffusion's Tables 4, 5 and 6, for one step on random images."""

from dataclasses import replace

import numpy as np
import pytest

from diffusers_dp.evaluation.images import ImageSet
from support.places import ROOT, module_of


classifiers = module_of(ROOT / "benchmarks" / "published_classifiers.py")


@pytest.fixture
def images():
    draws = np.random.default_rng(0)
    return ImageSet(draws.integers(0, 256, (12, 3, 16, 16), np.uint8), draws.integers(0, 3, 12), ("a", "b", "c"))


def test_numbers_of_the_tables():
    assert {name: len(list(classifiers.columns("grid", name))) for name in classifiers.GRIDS} == {
        "resnet50": 9, "vgg": 15, "wrn": 9,
    }  # fmt: skip
    (mnist,) = classifiers.columns("drawn", "mnist")
    assert (mnist.steps, mnist.batch_size, mnist.dropout, mnist.copies) == (10_000, 64, 0.5, 1)


@pytest.mark.parametrize("name", ["resnet50", "vgg", "wrn"])
def test_a_step_on_drawn_images(name, images):
    values = replace(next(classifiers.columns("grid", name)), batch_size=4, steps=1, copies=2, changes=classifiers.ALL)
    network = classifiers.learned(values, images, "cpu").eval()
    scores = classifiers.network_scores(network, images.images)
    assert scores.shape == (12, 3) and np.isfinite(scores).all()


def test_a_step_of_dp_sgd(images):
    values = replace(classifiers.TABLE_5["camelyon"], batch_size=4, copies=2, depth=10)
    _, cost = classifiers.learned_privately(values, images, "cpu", 1)
    assert cost["steps"] == 1 and 0 < cost["epsilon"] < classifiers.EPSILON
