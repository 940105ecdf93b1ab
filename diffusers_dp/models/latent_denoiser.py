# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Denoising networks of latents, for training and sampling: unconditional, or conditioned on a class by fixed public
prompts."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from diffusers import DDIMScheduler, DDPMScheduler
from torch import nn

from .denoiser import DDPMLoss, mixed_precision


class LatentDenoiser(nn.Module):
    """
    Maps noisy latents, steps and classes to a prediction. It contains the network and buffers only.

    Args:
        network (`UNet2DConditionModel`): Network, put into evaluation mode.
        scheduler (`DDPMScheduler` or `DDIMScheduler`): Scheduler that defines the noise and the target.
        num_classes (`int`, *optional*): Number of classes; `None`: unconditional.
        tokens (`torch.Tensor` of shape `[rows, length, d]`): Embeddings of a text encoder: one row per class and,
            last, one for no class; a single row without classes.
        autocast_dtype (`torch.dtype`, *optional*): `torch.bfloat16` runs the network in mixed precision.
        added (`dict[str, torch.Tensor]`): Further conditions of shape `[rows, d]`, for the network's
            `added_cond_kwargs`.
    """

    def __init__(
        self,
        network: Any,
        scheduler: Any,
        num_classes: int | None,
        tokens: torch.Tensor,
        autocast_dtype: torch.dtype | None = None,
        added: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ):
        super().__init__()
        self.network = network.eval()
        self.scheduler = scheduler
        self.num_classes = num_classes
        self.autocast_dtype = autocast_dtype
        self.tokens: torch.Tensor
        self.added = tuple(added)
        for name, values in {"tokens": tokens, **added}.items():
            self.register_buffer(name, values, persistent=False)

    @property
    def null_label(self) -> int:
        """Row for "no class"."""
        return self.num_classes or 0

    @property
    def config(self) -> SimpleNamespace:
        """The UNet settings that `DPImagePipeline` reads."""
        config, rows = self.network.config, None if self.num_classes is None else self.num_classes + 1
        return SimpleNamespace(
            sample_size=config.sample_size, in_channels=config.in_channels, num_class_embeds=rows,
        )  # fmt: skip

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def forward(self, sample: torch.Tensor, timesteps: torch.Tensor, class_labels: torch.Tensor | None = None) -> Any:
        """Computes the prediction for latents `[b, C, H, W]`, of the same shape, as `.sample`.

        Args:
            timesteps (`torch.Tensor` of shape `[b]` or `[]`): Timesteps in the scheduler's units.
            class_labels (`torch.LongTensor` of shape `[b]`, *optional*): Classes, `null_label` for none.
        """
        rows = (
            torch.zeros(len(sample), dtype=torch.long, device=sample.device) if class_labels is None else class_labels
        )
        times = torch.as_tensor(timesteps, device=sample.device).expand(len(sample))
        added = {name: self.get_buffer(name)[rows] for name in self.added} or None
        with mixed_precision(sample.device, self.autocast_dtype):
            output = self.network(sample, times, self.tokens[rows], added_cond_kwargs=added).sample
        return SimpleNamespace(sample=output.to(sample.dtype))


class LatentLoss(DDPMLoss):
    """The loss of each row of latents `[B, C, H, W]`, see `DDPMLoss`."""

    def predict(self, denoiser: LatentDenoiser, *inputs: torch.Tensor | None) -> torch.Tensor:
        return denoiser(*inputs).sample


def training_scheduler(scheduler: Any) -> Any:
    """Returns the scheduler of a network's training, for training and sampling, from any solver of its pipeline."""
    betas = DDPMScheduler.from_config(scheduler.config)
    # Latents have no bounds to clip to; sampling starts from the last step, even with few steps.
    return DDIMScheduler.from_config(betas.config, clip_sample=False, timestep_spacing="trailing")
