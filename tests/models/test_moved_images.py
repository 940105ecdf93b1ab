# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public images, moved to noisy moments of a class."""

import pytest
import torch

from diffusers_dp.models.moved_images import moved
from diffusers_dp.queries.moments import Frequencies


SHAPE = (3, 8, 8)
SPECTRUM = Frequencies(SHAPE, 9)
NUMBER = len(SPECTRUM.weights)


def asked_for():
    torch.manual_seed(0)
    mean, root = torch.randn(NUMBER), torch.randn(NUMBER, NUMBER)
    return mean, root @ root.T / NUMBER


def public(number):
    return torch.randint(256, (number, *SHAPE), dtype=torch.uint8)


def draw(images, number, mean, covariance):
    return moved(images, number, SPECTRUM, mean, covariance, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("images", [2000, 70])
def test_images_get_the_moments_that_are_asked_for(images):
    """Whether each is taken once or several times."""
    mean, covariance = asked_for()
    there = SPECTRUM(draw(public(images), 600, mean, covariance))
    assert torch.allclose(there.mean(0), mean, atol=1e-4)
    assert (there.T.cov() - covariance).norm() < 0.35 * covariance.norm()


def test_a_map_is_found_from_more_images_than_are_asked_for():
    mean, covariance = asked_for()
    images = public(60)
    few, many = draw(images, 3, mean, covariance), draw(images, 500, mean, covariance)
    assert torch.equal(few, many[:3]) and draw(images, 0, mean, covariance).shape == (0, *SHAPE)
    assert draw(images, 3, mean, covariance - 5 * torch.eye(NUMBER)).isfinite().all(), "noise is negative somewhere"


@pytest.mark.parametrize("flat", [1, 60])
def test_flat_images_are_not_blown_up(flat):
    """One of them, or all."""
    mean, covariance = asked_for()
    images = public(60)
    images[:flat] = torch.arange(flat)[:, None, None, None] * 4
    found = draw(images, 600, mean, covariance)
    assert found.isfinite().all() and found.abs().max() < 20


def test_fine_detail_stays():
    """What is beyond the frequencies is that of the public images, and each is taken once before any is again."""
    mean, covariance = asked_for()
    images = public(600)
    found = draw(images, 600, mean, covariance)
    fine = found - SPECTRUM.images(SPECTRUM(found))
    own = images / 255 - SPECTRUM.images(SPECTRUM(images / 255))
    alike = torch.nn.functional.normalize(fine.flatten(1)) @ torch.nn.functional.normalize(own.flatten(1)).T
    nearest, which = alike.max(1)
    assert (nearest > 0.999).all() and len(which.unique()) == 600
