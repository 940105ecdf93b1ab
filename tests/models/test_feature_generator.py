# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The one-step generator and the loss that fits it to noisy frequency features."""

import pytest
import torch

from diffusers_dp.models.feature_generator import FeatureGenerator, frequency_matching_loss
from diffusers_dp.models.one_step import generate
from diffusers_dp.queries.frequency import RandomFourierFeatures


def make_generator(shape=(1, 8, 8), num_classes=3):
    torch.manual_seed(0)
    return FeatureGenerator(shape, num_classes, channels=6, latent_dim=5)


def test_the_loss_is_zero_at_the_target_alone():
    """The target is the mean over all images of phi(x) (x) onehot(y), as the door answers without noise."""
    features = RandomFourierFeatures((1, 8, 8), 40, 4.0, seed=0)
    images, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 0, 1, 2, 2, 2])
    target = torch.stack([features(images[labels == row]).sum(0) for row in range(3)]) / 6
    assert frequency_matching_loss(features, images, labels, target).item() == pytest.approx(0, abs=1e-10)
    assert frequency_matching_loss(features, images, labels.flip(0), target) > 1e-3
    assert frequency_matching_loss(features, 1 - images, labels, target) > 1e-3
    moved = target.clone()
    moved[1, 3] += 0.5
    assert frequency_matching_loss(features, images, labels, moved).item() == pytest.approx(0.25, rel=1e-3)


def test_fitting_lowers_the_loss():
    generator, features = make_generator(), RandomFourierFeatures((1, 8, 8), 60, 4.0, seed=0)
    truth = torch.zeros(3, 1, 8, 8)
    for row in range(3):
        truth[row, :, :, row * 3] = 1
    target, labels = features(truth) / 3, torch.arange(30) % 3
    optimizer, losses = torch.optim.Adam(generator.parameters(), lr=1e-2), []
    for _ in range(40):
        loss = frequency_matching_loss(features, generator(torch.randn(30, 5), labels), labels, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    brightest = generate(generator, torch.arange(3)).float().mean((1, 2)).argmax(1)
    assert brightest.tolist() == [0, 3, 6]
