# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The closed form against derivatives of the density, and a network that learns it."""

import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from diffusers_dp.models.denoiser import EDMLoss
from diffusers_dp.models.gaussian_mixture import GaussianMixture
from diffusers_dp.models.mixture_denoiser import DistillationLoss, MixtureDenoiser
from diffusers_dp.queries.moments import Frequencies


SHAPE = (3, 4, 4)


def made(seed=0):
    """Two classes of three parts each, the mixture in weighted coefficients, and all frequencies."""
    draws = torch.Generator().manual_seed(seed)
    spectrum = Frequencies(SHAPE, 16)
    size = len(spectrum.weights)
    roots = torch.randn(2, 3, size, size, generator=draws) / 4
    mixture = GaussianMixture(
        torch.tensor([[3.0, 1, 0.5], [1, 0, 1]]), torch.randn(2, 3, size, generator=draws), roots @ roots.mT
    )
    return mixture, spectrum, MixtureDenoiser(mixture, spectrum.waves, spectrum.weights)


def density(mixture, spectrum, sigma, classes):
    """Of noisy coefficients without weights, of images in [-1, 1]."""
    scale = 2 / spectrum.weights
    means, covariances = mixture.means[classes] * scale, mixture.covariances[classes] * scale[:, None] * scale
    shares = mixture.shares[classes] / mixture.shares[classes].sum(1, keepdim=True)
    noise = sigma**2 * torch.eye(len(scale))
    parts = MultivariateNormal(means.flatten(0, 1), covariances.flatten(0, 1) + noise)
    return MixtureSameFamily(Categorical(shares.flatten()), parts)


def test_it_is_the_noisy_image_moved_along_the_score():
    """D(x; sigma) = x + sigma^2 grad log p(x; sigma) (Karras et al. 2022, Equation 3)."""
    mixture, spectrum, denoiser = made()
    # Label 2 is none of the classes: the mixture of both.
    for label, classes, sigma in ((0, [0], 0.3), (1, [1], 1.0), (2, [0, 1], 2.0)):
        noisy = torch.randn(5, len(spectrum.weights), generator=torch.Generator().manual_seed(label))
        noisy.requires_grad_(True)
        density(mixture, spectrum, sigma, classes).log_prob(noisy).sum().backward()
        expected = noisy.detach() + sigma**2 * noisy.grad
        images = (noisy.detach() @ spectrum.waves).unflatten(1, SHAPE)
        clean = denoiser(images, torch.full((5,), sigma), torch.full((5,), label))
        torch.testing.assert_close(clean.flatten(1) @ spectrum.waves.T, expected, atol=2e-4, rtol=1e-3)


def test_the_loss_is_least_at_the_teacher():
    """It is 0 there; EDM's own loss is not, because clean images differ from their mean."""
    mixture, spectrum, denoiser = made()
    denoiser.null_label, denoiser.sigma_data = 2, 0.5  # as a network has them
    labels = torch.tensor([0, 1, 0, 1])
    images = denoiser.draw(labels, SHAPE)
    own = EDMLoss(label_dropout=0.5)
    assert DistillationLoss(denoiser, own)(denoiser, images, labels).max() == 0
    assert own(denoiser, images, labels).min() > 0
