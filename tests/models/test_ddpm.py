# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The discrete objective: its formula, its draws, that rows are independent, and that what it trains is sampled as
Diffusers samples it."""

import pytest
import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMScheduler

from diffusers_dp.models.denoiser import DDPMImageDenoiser, DDPMLoss, EDMLoss, linear_schedule
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.models import MIXTURE, GaussianPredictor, Recorder, make_ddpm, make_denoiser, unet_config


KEY = bytes(range(16))


def test_the_schedule_is_that_of_the_paper():
    """1,000 steps, beta from 1e-4 to 0.02 linearly; sampling starts at the last step."""
    scheduler = linear_schedule()
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    torch.testing.assert_close(scheduler.alphas_cumprod.double(), (1 - betas).cumprod(0), rtol=1e-4, atol=1e-6)
    scheduler.set_timesteps(20)
    assert scheduler.timesteps[0] == 999 and scheduler.config.prediction_type == "epsilon"


@pytest.mark.parametrize("patch_size", [1, 2])
@pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("cls", [DDPMScheduler, DDIMScheduler])
def test_the_loss_by_its_formula(cls, kind, patch_size):
    """Noisy images, steps and targets recomputed in float64 from the draws of the same key, betas from their
    definition."""
    betas = torch.linspace(2e-4, 0.03, 50, dtype=torch.float64)
    denoiser = make_ddpm(patch_size, scheduler=cls(50, 2e-4, 0.03, prediction_type=kind))
    images, labels = torch.rand(6, 2, 8, 8) * 2 - 1, torch.tensor([0, 1, 2, 0, 1, 2])
    recorder = Recorder(denoiser.unet)
    losses = DDPMLoss(0.5)(denoiser, images, labels, PrivateGenerator(KEY))
    draws = PrivateGenerator(KEY)
    steps = torch.from_numpy(draws.uniform(6) * 50).long()
    dropped = torch.from_numpy(draws.uniform(6)) < 0.5
    noise = draws.normal((6, 2, 8, 8), 1.0).double()
    alpha = (1 - betas).cumprod(0)[steps].view(-1, 1, 1, 1)
    noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
    target = {"epsilon": noise, "sample": images, "v_prediction": alpha.sqrt() * noise - (1 - alpha).sqrt() * images}
    assert torch.equal(recorder.noise_level, steps)
    assert torch.equal(recorder.labels, torch.where(dropped, 3, labels)) and 0 < dropped.sum() < 6
    torch.testing.assert_close(recorder.sample.double(), F.pixel_unshuffle(noisy, patch_size), rtol=1e-4, atol=1e-4)
    expected = (F.pixel_shuffle(recorder.output, patch_size) - target[kind]).square().mean((1, 2, 3))
    torch.testing.assert_close(losses.double(), expected.double(), rtol=1e-4, atol=1e-4)
    assert losses.shape == (6,) and losses.requires_grad


@pytest.mark.parametrize("generator", [None, PrivateGenerator(KEY)])
def test_a_mixture_of_edm_is_over_the_quantiles_of_its_noise_levels(generator):
    """5 % below the 20 % quantile of ln(sigma) ~ N(P_mean, P_std^2), 5 % above the 80 % quantile."""
    denoiser = make_denoiser(num_classes=None)
    recorder = Recorder(denoiser.unet)
    torch.manual_seed(0)
    with torch.no_grad():
        EDMLoss(0.0, -0.4, 0.9, MIXTURE)(denoiser, torch.zeros(6000, 2, 8, 8), None, generator)
    levels = (4 * recorder.noise_level + 0.4) / 0.9
    low, high = torch.distributions.Normal(0, 1).icdf(torch.tensor([0.2, 0.8]))
    assert (levels < low).float().mean().item() == pytest.approx(0.05, abs=0.01)
    assert (levels > high).float().mean().item() == pytest.approx(0.05, abs=0.01)
    assert levels.isfinite().all()


@pytest.mark.parametrize("loss", [DDPMLoss(), DDPMLoss(mixture=MIXTURE), EDMLoss(mixture=MIXTURE)])
def test_rows_of_the_loss_are_independent(loss):
    """What one row holds, NaN included, changes its own loss alone: the gradient engine rests on it."""
    denoiser = make_denoiser() if isinstance(loss, EDMLoss) else make_ddpm()
    images, labels = torch.rand(5, 2, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    losses = []
    for value in (None, 1e3, float("nan")):
        changed, changed_labels = images.clone(), labels.clone()
        if value is not None:
            changed[2], changed_labels[2] = value, 0
        losses.append(loss(denoiser, changed, changed_labels, PrivateGenerator(KEY)).detach())
    others = torch.tensor([0, 1, 3, 4])
    for found in losses[1:]:
        assert torch.allclose(found[others], losses[0][others], rtol=1e-5) and found[2] != losses[0][2]


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction"])
def test_a_denoiser_of_any_noise_level(kind):
    """For Gaussian pixels the best estimate is known: mean + std^2 (x - mean) / (std^2 + sigma^2)."""
    scheduler = DDIMScheduler(prediction_type=kind)
    unet = GaussianPredictor(**unet_config())
    mean = torch.tensor([0.1]).view(1, 1, 1, 1)
    unet.prepare(mean, scheduler)
    denoiser = DDPMImageDenoiser(ScalarTime(unet), scheduler)
    for sigma in (0.05, 0.5, 3.0):
        noisy = torch.randn(4, 1, 8, 8) * (0.2**2 + sigma**2) ** 0.5 + mean
        expected = mean + 0.2**2 * (noisy - mean) / (0.2**2 + sigma**2)
        found = denoiser(noisy, torch.full((4,), sigma))
        torch.testing.assert_close(found, expected, atol=0.01 + 0.01 * sigma, rtol=0)


class ScalarTime(torch.nn.Module):
    """Gives a network that takes one step for all rows the step of the first."""

    def __init__(self, unet):
        super().__init__()
        self.unet = unet

    def forward(self, sample, timesteps, class_labels=None):
        return self.unet(sample, timesteps[0], class_labels)
