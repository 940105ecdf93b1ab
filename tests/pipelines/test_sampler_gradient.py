# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Sampling with gradients: the images are those of Diffusers' Euler solver, and the gradients those of finite
differences."""

import pytest
import torch
from diffusers import EDMEulerScheduler

from diffusers_dp.models.denoiser import EDMDenoiser
from diffusers_dp.models.one_step import DDIMGenerator, ddim_images, generate
from support.releases import make_unet


SIGMA_DATA = 0.5


@pytest.fixture
def denoiser():
    return EDMDenoiser(make_unet(3), SIGMA_DATA)


def euler(denoiser, noise, labels, steps):
    """By Diffusers, step by step."""
    scheduler = EDMEulerScheduler(sigma_data=SIGMA_DATA)
    scheduler.set_timesteps(steps)
    sample = noise * scheduler.sigmas[0]
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(sample, timestep)
        output = denoiser.unet(scaled, timestep, class_labels=labels).sample
        sample = scheduler.step(output, timestep, sample).prev_sample
    return sample


@pytest.mark.parametrize("steps", [1, 4])
def test_images_are_those_of_the_euler_solver(denoiser, steps):
    noise, labels = torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2])
    with torch.no_grad():
        images = ddim_images(denoiser, noise, labels, num_inference_steps=steps)
        expected = euler(denoiser, noise, labels, steps) / 2 + 0.5
    torch.testing.assert_close(images, expected, rtol=1e-4, atol=1e-4)


def test_gradients_flow_through_every_step(denoiser):
    denoiser = denoiser.double()
    noise, labels = torch.randn(2, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 2])
    weight = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    parameter = denoiser.unet.conv_out.bias

    def value():
        return (ddim_images(denoiser, noise, labels, num_inference_steps=3) * weight).sum()

    value().backward()
    step, exact = 1e-5, parameter.grad.clone()
    with torch.no_grad():
        parameter += step
        above = value()
        parameter -= 2 * step
        below = value()
    assert exact.item() == pytest.approx((above - below).item() / (2 * step), rel=1e-4)
    assert all(each.grad is not None and each.grad.isfinite().all() for each in denoiser.parameters() if each.numel())


def test_in_the_place_of_the_one_step_generator():
    for classes in (3, None):
        generator = DDIMGenerator(EDMDenoiser(make_unet(classes), SIGMA_DATA), (1, 8, 8), 2)
        assert generator.num_classes == (classes or 1)
        labels = torch.arange(7) % generator.num_classes
        assert generator.draw(labels).requires_grad
        images = generate(generator, labels, batch_size=3)
        assert images.shape == (7, 1, 8, 8) and images.dtype == torch.uint8 and images.float().std() > 0
