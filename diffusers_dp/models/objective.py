# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The training objective of a UNet and the scheduler that samples from it, from flags or from a pre-trained
pipeline."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, UNet2DModel

from ..randomness.timestep_mixture import TimestepMixture
from .ddpm import DDPMDenoiser, DDPMLoss
from .denoiser import Denoiser, EDMDenoiser, EDMLoss
from .row_augmentation import AugmentedLoss


Scheduler: TypeAlias = "DDIMScheduler | EDMDPMSolverMultistepScheduler"
TrainingLoss: TypeAlias = (
    "Callable[..., torch.Tensor]"  # a `RowLoss` that draws from torch if it gets no secret source
)


def build_objective(
    unet: UNet2DModel,
    scheduler: Scheduler,
    patch_size: int,
    *,
    p_mean: float,
    p_std: float,
    mixture: TimestepMixture | None,
    augmentations: Sequence[str],
    bf16: bool,
) -> tuple[Denoiser, TrainingLoss]:
    """Builds the denoiser of a UNet and the loss of its training rows.

    Args:
        unet (`UNet2DModel`): Network to train.
        scheduler (`DDIMScheduler` or `EDMDPMSolverMultistepScheduler`): Scheduler whose type selects the objective,
            with its noise levels.
        patch_size (`int`): Side length of the patches that are folded into channels.
        p_mean, p_std (`float`): See the flags of these names.
        mixture (`TimestepMixture`, *optional*): Distribution of diffusion times.
        augmentations (sequence of `str`): Augmentations applied to each row independently.
        bf16 (`bool`): Whether the UNet runs in mixed precision.
    """
    autocast_dtype = torch.bfloat16 if bf16 else None
    denoiser: Denoiser
    loss: TrainingLoss
    if isinstance(scheduler, DDIMScheduler):
        denoiser = DDPMDenoiser(unet, scheduler, patch_size, autocast_dtype)
        loss = DDPMLoss(mixture=mixture)
    else:
        denoiser = EDMDenoiser(unet, scheduler.config.sigma_data, patch_size, autocast_dtype)
        loss = EDMLoss(p_mean=p_mean, p_std=p_std, mixture=mixture)
    return denoiser, AugmentedLoss(loss, tuple(augmentations)) if augmentations else loss
