# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a UNet is trained for, and the scheduler that samples what it learned: from flags, or from a pre-trained pipeline."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, UNet2DModel

from ..flags import TrainingConfig
from .ddpm import DDPMDenoiser, DDPMLoss, linear_schedule
from .denoiser import Denoiser, EDMDenoiser, EDMLoss
from .row_augmentation import AugmentedLoss


Scheduler: TypeAlias = "DDIMScheduler | EDMDPMSolverMultistepScheduler"
TrainingLoss: TypeAlias = (
    "Callable[..., torch.Tensor]"  # a `RowLoss` that draws from torch where it is given no secret source
)


def noise_schedule(config: TrainingConfig) -> Scheduler:
    """The scheduler of a model that begins from nothing: `--objective`, or the default of the method."""
    if (config.objective or config.default_objective) == "ddpm":
        return linear_schedule()
    return EDMDPMSolverMultistepScheduler(sigma_min=config.sigma_min, sigma_data=config.sigma_data)


def build_objective(
    config: TrainingConfig, unet: UNet2DModel, scheduler: Scheduler, patch_size: int | None = None
) -> tuple[Denoiser, TrainingLoss]:
    """The denoiser around a UNet, and the loss of its training rows, with the flags' noise levels, label dropout and augmentations.

    Args:
        config (`TrainingConfig`): The flags.
        unet (`UNet2DModel`): The network; its parameters are trained.
        scheduler (`DDIMScheduler` or `EDMDPMSolverMultistepScheduler`): Which of the two objectives, and its noise levels.
        patch_size (`int`, *optional*): Of a pre-trained model; by default `--patch_size`.
    """
    autocast_dtype = torch.bfloat16 if config.precision == "bf16" else None
    patch_size = patch_size or config.patch_size
    denoiser: Denoiser
    loss: TrainingLoss
    if isinstance(scheduler, DDIMScheduler):
        denoiser = DDPMDenoiser(unet, scheduler, patch_size, autocast_dtype)
        loss = DDPMLoss(config.label_dropout, config.mixture)
    else:
        denoiser = EDMDenoiser(unet, scheduler.config.sigma_data, patch_size, autocast_dtype)
        loss = EDMLoss(config.label_dropout, config.p_mean, config.p_std, config.mixture)
    return denoiser, AugmentedLoss(loss, config.augmentation_names) if config.augmentation_names else loss
