# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A plain `UNet2DModel` as a generator: maps noise and a label to an image in one call."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, UNet2DModel


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
