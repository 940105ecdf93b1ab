# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A generator that is fitted to noisy mean features of each class, and its draws, moved to noisy moments."""

import pytest
import torch

from diffusers_dp.models.class_features import CLASS_TERM, ClassFeatures, draw_class
from diffusers_dp.models.feature_generator import FeatureGenerator
from diffusers_dp.queries.moments import Frequencies


MEANS = torch.eye(3, 20)


def test_the_loss_has_no_bias():
    """Over many small batches it is the distance of the means: features that differ more from each other about the
    same mean have the same loss, though the square of one batch's mean is larger."""
    torch.manual_seed(0)
    loss, labels = ClassFeatures(MEANS, torch.zeros(3)), torch.tensor([0, 1] * 4)
    near = MEANS[labels] + 0.1

    def mean_loss(spread):
        batches = [near + spread * torch.randn(8, 20) for _ in range(4000)]
        return sum(loss(lambda images: rows, torch.zeros(8, 1, 8, 8), labels).item() for rows in batches) / 4000  # noqa: B023

    distance = 2 * 20 * 0.1**2
    apart = CLASS_TERM * 2 * (torch.full((20,), 0.1) @ loss.directions).square().sum().item()
    assert mean_loss(0.0) == pytest.approx(distance + apart, rel=1e-3)
    assert mean_loss(1.0) == pytest.approx(mean_loss(0.0), rel=0.25)
    assert loss(lambda images: MEANS[labels], torch.zeros(8, 1, 8, 8), labels).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("classes", [1, 3])
def test_a_class_that_is_noise_is_like_all(classes):
    means = MEANS[:classes] + 1.0
    loss = ClassFeatures(means, torch.full((classes,), 100.0))
    assert torch.allclose(loss.means, means.mean(0).expand(classes, -1))
    found = loss(lambda images: torch.zeros(4, 20), torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long))
    assert found.isfinite()


def test_draws_get_the_moments_that_are_asked_for():
    torch.manual_seed(0)
    shape = (3, 8, 8)
    generator, spectrum = FeatureGenerator(shape, 2, channels=6, latent_dim=30, tapered=True), Frequencies(shape, 9)
    number = len(spectrum.weights)
    mean, root = torch.randn(number), torch.randn(number, number)
    covariance = root @ root.T / number
    drawn = draw_class(generator, 1, 600, torch.Generator(), spectrum, mean, covariance)
    there = spectrum(drawn)
    assert torch.allclose(there.mean(0), mean, atol=1e-4)
    assert (there.T.cov() - covariance).norm() < 0.35 * covariance.norm()
    few = draw_class(generator, 1, 3, torch.Generator(), spectrum, mean, covariance)
    assert few.shape == (3, *shape) and few.isfinite().all(), "a map is found from more draws than are asked for"
    assert draw_class(generator, 0, 0, torch.Generator(), spectrum, mean, covariance).shape == (0, *shape)
    left_out = draw_class(generator, 1, 3, torch.Generator(), spectrum, mean, covariance - 5 * torch.eye(number))
    assert left_out.isfinite().all(), "noise makes directions negative"
