# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Denoising networks of latents, for training and sampling: unconditional, or conditioned on a class by fixed public
prompts or by the network's class table."""

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DiTTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
)
from diffusers.models.embeddings import LabelEmbedding
from torch import nn

from .ddpm import DDPMLoss
from .denoiser import mixed_precision


class FlowSteps(FlowMatchEulerDiscreteScheduler):
    """Flow matching with the interface of an EDM scheduler."""

    init_noise_sigma = 1.0

    def scale_model_input(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return sample


class LatentDenoiser(nn.Module):
    """
    One interface for all networks: maps noisy latents, steps and classes to a prediction. It contains the network and
    buffers only.

    Args:
        network (`UNet2DConditionModel`, `DiTTransformer2DModel` or `SD3Transformer2DModel`): Network, put into
            evaluation mode because some networks drop labels while they train.
        scheduler (`DDPMScheduler`, `DDIMScheduler` or `FlowSteps`): Scheduler that defines the noise and the target.
        num_classes (`int`, *optional*): Number of classes; `None`: unconditional.
        prompts (`dict`, *optional*): Embeddings of a text encoder: `tokens`, `[rows, length, d]`, and for SD3
            `pooled`, `[rows, p]`. There is one row per class and, last, one for no class; a single row without
            classes. `None` for a DiT, whose table has such rows.
        autocast_dtype (`torch.dtype`, *optional*): `torch.bfloat16` runs the network in mixed precision.
    """

    def __init__(
        self,
        network: Any,
        scheduler: Any,
        num_classes: int | None,
        prompts: dict[str, torch.Tensor] | None = None,
        autocast_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.network = network.eval()
        self.scheduler = scheduler
        self.num_classes = num_classes
        self.autocast_dtype = autocast_dtype
        self.tokens: torch.Tensor
        self.pooled: torch.Tensor
        for name, rows in (prompts or {}).items():
            self.register_buffer(name, rows, persistent=False)

    @property
    def is_conditional(self) -> bool:
        """Whether the network is class-conditional."""
        return self.num_classes is not None

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
        return torch.float32  # type of latents and predictions

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
        with mixed_precision(sample.device, self.autocast_dtype):
            if isinstance(self.network, DiTTransformer2DModel):
                output = self.network(sample, timestep=times, class_labels=rows).sample
            elif isinstance(self.network, SD3Transformer2DModel):
                output = self.network(
                    sample, encoder_hidden_states=self.tokens[rows], pooled_projections=self.pooled[rows],
                    timestep=times,
                ).sample  # fmt: skip
            else:
                output = self.network(sample, times, encoder_hidden_states=self.tokens[rows]).sample
        return SimpleNamespace(sample=output[:, : sample.shape[1]].to(sample.dtype))  # a DiT also returns variances


class LatentLoss(DDPMLoss):
    """The loss of each row of latents `[B, C, H, W]`: that of `DDPMLoss`, or of flow matching."""

    def predict(self, denoiser: LatentDenoiser, *inputs: torch.Tensor | None) -> torch.Tensor:
        return denoiser(*inputs).sample


def training_scheduler(scheduler: Any) -> Any:
    """Returns the scheduler of a network's training, for training and sampling, from any solver of its pipeline."""
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        return FlowSteps.from_config(scheduler.config)
    betas = DDPMScheduler.from_config(scheduler.config)
    # Latents have no bounds to clip to; sampling starts from the last step, even with few steps.
    return DDIMScheduler.from_config(betas.config, clip_sample=False, timestep_spacing="trailing")


def fit_label_tables(network: nn.Module, num_classes: int) -> None:
    """Resizes each class table of a DiT to a row per class and, last, one for no class. If the number of classes
    differs, each new row is the mean of the old ones."""
    for module in network.modules():
        if isinstance(module, LabelEmbedding) and module.num_classes != num_classes:
            rows = module.embedding_table.weight
            table = nn.Embedding(num_classes + 1, rows.shape[1], device=rows.device, dtype=rows.dtype)
            with torch.no_grad():
                table.weight.copy_(rows.mean(0))
            module.embedding_table, module.num_classes = table, num_classes
    network.register_to_config(num_embeds_ada_norm=num_classes)  # type: ignore[operator]
