# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""EDM preconditioning and loss, against Diffusers' own scheduler and the paper's other form of the loss."""

import pytest
import torch
import torch.nn.functional as F
from diffusers import EDMEulerScheduler

from diffusers_dp.models.denoiser import EDMLoss
from support.models import SIGMA_DATA, Recorder, make_denoiser


@pytest.mark.parametrize("sigma_data", [0.5, SIGMA_DATA])
@pytest.mark.parametrize("patch_size", [1, 2])
def test_preconditioning_is_that_of_the_scheduler(sigma_data, patch_size):
    """`EDMEulerScheduler` samples what was trained: the same inputs, noise condition and outputs, per image."""
    denoiser = make_denoiser(patch_size, sigma_data=sigma_data)
    scheduler = EDMEulerScheduler(sigma_data=sigma_data)
    sigmas, labels = torch.tensor([0.002, 0.3, 1.0, 80.0]), torch.tensor([0, 1, 2, 3])
    samples = torch.randn(4, 2, 8, 8) * sigmas.view(-1, 1, 1, 1)
    with torch.no_grad():
        found = denoiser(samples, sigmas, labels)
        for sample, sigma, label, image in zip(samples.split(1), sigmas, labels.split(1), found, strict=True):
            scaled = scheduler.precondition_inputs(sample, sigma)
            condition = scheduler.precondition_noise(sigma)
            output = denoiser.unet(F.pixel_unshuffle(scaled, patch_size), condition, class_labels=label).sample
            expected = scheduler.precondition_outputs(sample, F.pixel_shuffle(output, patch_size), sigma)
            assert torch.allclose(image, expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("patch_size", [1, 2])
def test_the_loss_is_that_of_the_effective_target(patch_size):
    """Karras et al. 2022, Equation 8: with weight 1/c_out^2, the distance of F to (y - c_skip (y + n)) / c_out."""
    denoiser, images = make_denoiser(patch_size, num_classes=None), torch.rand(6, 2, 8, 8) * 2 - 1
    recorder = Recorder(denoiser.unet)
    losses = EDMLoss()(denoiser, images, None)
    sigma = (4 * recorder.noise_level).exp().view(-1, 1, 1, 1)
    total = (sigma**2 + SIGMA_DATA**2).sqrt()
    noisy = F.pixel_shuffle(recorder.sample, patch_size) * total
    target = (images - (SIGMA_DATA / total) ** 2 * noisy) * total / (sigma * SIGMA_DATA)
    expected = (F.pixel_shuffle(recorder.output, patch_size) - target).square().mean((1, 2, 3))
    assert losses.shape == (6,) and torch.allclose(losses, expected, rtol=1e-3, atol=1e-4)
    assert recorder.labels is None


@pytest.mark.parametrize("p_mean, p_std", [(-1.2, 1.2), (-0.4, 0.9)])
def test_noise_levels_and_noise_of_the_loss(p_mean, p_std):
    """`ln(sigma) ~ N(P_mean, P_std^2)`, and noise of that standard deviation, both fresh for every row."""
    denoiser, images = make_denoiser(num_classes=None), torch.zeros(4000, 2, 8, 8)
    recorder = Recorder(denoiser.unet)
    with torch.no_grad():
        EDMLoss(p_mean=p_mean, p_std=p_std)(denoiser, images, None)
    levels = 4 * recorder.noise_level
    assert levels.mean().item() == pytest.approx(p_mean, abs=0.08)
    assert levels.std().item() == pytest.approx(p_std, abs=0.06)
    sigma = levels.exp().view(-1, 1, 1, 1)
    noise = recorder.sample * (sigma**2 + SIGMA_DATA**2).sqrt() / sigma
    assert noise.std().item() == pytest.approx(1.0, abs=0.01)
    assert torch.corrcoef(noise[:20].flatten(1)).fill_diagonal_(0).abs().max() < 0.5
