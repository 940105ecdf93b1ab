# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A plain `UNet2DModel` as a generator: maps noise and a label to an image in one call.

And differentiable DDIM sampling, to fit a diffusion model to features of its images.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, EDMEulerScheduler, UNet2DModel
from torch.utils.checkpoint import checkpoint

from .denoiser import EDMDenoiser


def one_step_scheduler() -> DDIMScheduler:
    """Returns a scheduler with one training step, at which the UNet predicts the sample. Its step returns the UNet's
    output, clamped to [-1, 1]."""
    return DDIMScheduler(num_train_timesteps=1, prediction_type="sample")


class OneStepGenerator:
    """
    Draws like `DPImagePipeline` with `one_step_scheduler`, but with gradients.

    Args:
        unet (`UNet2DModel`): Network, called with noise, `t = 0` and labels.
        patch_size (`int`): Side length of the patches that are folded into channels.
    """

    def __init__(self, unet: UNet2DModel, patch_size: int):
        self.unet, self.patch_size = unet, patch_size

    @property
    def num_classes(self) -> int:
        """Number of classes; 1 for unlabelled data."""
        return (self.unet.config.num_class_embeds or 2) - 1

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Parameters of the UNet."""
        return self.unet.parameters()

    def draw(self, class_labels: torch.Tensor) -> torch.Tensor:
        """Draws an image for each label, `[len(class_labels), C, H, W]`, in about [0, 1]. It is not clamped because
        clamped values have no gradient."""
        config, labels = self.unet.config, class_labels if self.unet.config.num_class_embeds else None
        shape = (len(class_labels), config.in_channels, config.sample_size, config.sample_size)
        folded = self.unet(torch.randn(shape, device=class_labels.device), 0, class_labels=labels).sample
        return F.pixel_shuffle(folded, self.patch_size) / 2 + 0.5


@torch.no_grad()
def generate(generator: Any, class_labels: torch.Tensor, batch_size: int = 500) -> torch.Tensor:
    """Draws an image for each label, uint8 `[len(class_labels), C, H, W]`, on the CPU, in evaluation mode.

    Args:
        generator (`FeatureGenerator` or `OneStepGenerator`): Generator.
    """
    if isinstance(generator, torch.nn.Module):
        generator.eval()
    parts = class_labels.to(next(generator.parameters()).device).split(batch_size)
    return torch.cat([generator.draw(labels).clamp(0, 1).mul(255).round().byte().cpu() for labels in parts])


def ddim_images(
    denoiser: EDMDenoiser, noise: torch.Tensor, class_labels: torch.Tensor | None, *, num_inference_steps: int
) -> torch.Tensor:
    """Samples images with deterministic DDIM, differentiable in the weights (FETA-Pro, Appendix C.1, Equation 2).

    For a variance-exploding process DDIM is Euler's method on the probability flow (Song et al. 2021, Equation 13,
    with eta = 0), on the noise levels of Diffusers' `EDMEulerScheduler`. The backward pass recomputes the activations
    of each step, so memory hardly grows with the number of steps.

    Args:
        denoiser (`EDMDenoiser`): Diffusion model.
        noise (`torch.Tensor` of shape `[B, C, H, W]`): Standard normal noise.
        class_labels (`torch.LongTensor` of shape `[B]`, *optional*): Rows of the class table.
        num_inference_steps (`int`): Number of calls of the model.

    Returns:
        `torch.Tensor` of shape `[B, C, H, W]`: Images in about [0, 1], not clamped because clamped values have no
            gradient.
    """
    scheduler = EDMEulerScheduler(sigma_data=denoiser.sigma_data)
    scheduler.set_timesteps(num_inference_steps)
    sigmas = scheduler.sigmas.tolist()  # from large to small, then 0
    sample = noise * sigmas[0]
    for sigma, lower in zip(sigmas[:-1], sigmas[1:], strict=True):
        level = sample.new_full((len(sample),), sigma)
        clean = checkpoint(denoiser, sample, level, class_labels, use_reentrant=False)
        sample = clean + (sample - clean) * (lower / sigma)
    return sample / 2 + 0.5


class DDIMGenerator(OneStepGenerator):
    """A diffusion model with the interface of the one-step generator; it samples by DDIM, with gradients.

    Args:
        denoiser (`EDMDenoiser`): Diffusion model.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_inference_steps (`int`): Number of calls of the model per image; the paper's variants use 50.
    """

    def __init__(self, denoiser: EDMDenoiser, image_shape: tuple[int, int, int], num_inference_steps: int):
        super().__init__(denoiser.unet, denoiser.patch_size)
        self.denoiser, self.image_shape, self.num_inference_steps = denoiser, tuple(image_shape), num_inference_steps

    def draw(self, class_labels: torch.Tensor) -> torch.Tensor:
        """Draws an image for each label, `[len(class_labels), C, H, W]`, in about [0, 1], with gradients."""
        noise = torch.randn(len(class_labels), *self.image_shape, device=class_labels.device)
        labels = class_labels if self.unet.config.num_class_embeds else None
        return ddim_images(self.denoiser, noise, labels, num_inference_steps=self.num_inference_steps)
