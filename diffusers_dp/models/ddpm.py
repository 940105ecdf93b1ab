# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DDPM's discrete-time objective for a plain `UNet2DModel`, as a Diffusers scheduler describes it."""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

from ..randomness.timestep_mixture import TIMESTEPS
from .denoiser import Denoiser, DenoisingLoss


def linear_schedule() -> DDIMScheduler:
    """Returns a scheduler with 1,000 steps, betas from 1e-4 to 0.02 in equal steps, and noise prediction (Ho et al.
    2020, Section 4). Sampling starts from the last step, even with few steps."""
    return DDIMScheduler(num_train_timesteps=TIMESTEPS, timestep_spacing="trailing")


class DDPMDenoiser(Denoiser):
    """A `UNet2DModel` that makes the prediction of its scheduler's `prediction_type` from `sqrt(abar_t) x_0 + sqrt(1 -
    abar_t) epsilon` (Ho et al. 2020, Equation 4).

    Args:
        unet, patch_size, autocast_dtype: See `Denoiser`.
        scheduler (`DDPMScheduler` or `DDIMScheduler`): Scheduler with the betas and the `prediction_type`: `epsilon`,
            `sample` or `v_prediction`.
    """

    def __init__(
        self,
        unet: UNet2DModel,
        scheduler: DDPMScheduler | DDIMScheduler,
        patch_size: int = 1,
        autocast_dtype: torch.dtype | None = None,
    ):
        super().__init__(unet, patch_size, autocast_dtype)
        self.scheduler = scheduler

    def forward(
        self, sample: torch.Tensor, timesteps: torch.Tensor, class_labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Computes the prediction.

        Args:
            sample (`torch.Tensor` of shape `[B, C, H, W]`): Noisy images.
            timesteps (`torch.LongTensor` of shape `[B]`): Steps from 0 to the scheduler's number of steps, excluded.
            class_labels (`torch.LongTensor` of shape `[B]`, *optional*): Rows of the class table.

        Returns:
            `torch.Tensor` of shape `[B, C, H, W]`.
        """
        return self.network(sample, timesteps, class_labels)


class DDPMImageDenoiser(DDPMDenoiser):
    """The same UNet with the interface of `EDMDenoiser`: a denoiser for noise of any standard deviation, not for
    training.

    It scales `x_0 + sigma epsilon` by `sqrt(abar_t)` to `x_t`, at the step t whose `sqrt((1 - abar_t) / abar_t)` is
    nearest to sigma.
    """

    def forward(
        self, sample: torch.Tensor, sigma: torch.Tensor, class_labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Estimates the clean images, `[B, C, H, W]`; see `EDMDenoiser.forward`."""
        levels = ((1 - self.scheduler.alphas_cumprod) / self.scheduler.alphas_cumprod).sqrt().to(sample.device)
        timesteps = (levels.log() - sigma.log()[:, None]).abs().argmin(1)
        alpha = 1 / (1 + levels[timesteps].square())[:, None, None, None]
        noisy = alpha.sqrt() * sample
        prediction = self.network(noisy, timesteps, class_labels)
        kind = self.scheduler.config.prediction_type
        if kind == "epsilon":
            return (noisy - (1 - alpha).sqrt() * prediction) / alpha.sqrt()
        return prediction if kind == "sample" else alpha.sqrt() * noisy - (1 - alpha).sqrt() * prediction


class DDPMLoss(DenoisingLoss):
    """DDPM's unweighted loss, a mean over pixels per row (Ho et al. 2020, Equation 14; Ghalebikesabi et al. 2023,
    Equation 1). Its times are steps, as shares of their number."""

    def at(
        self, denoiser: Any, images: torch.Tensor, labels: torch.Tensor | None, noise: torch.Tensor,
        times: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        noisy, target, timesteps = noised(denoiser.scheduler, images, noise, times)
        prediction = self.predict(denoiser, noisy, timesteps, labels)
        return F.mse_loss(prediction, target, reduction="none").flatten(1).mean(1)

    def predict(self, denoiser: Any, *inputs: torch.Tensor | None) -> torch.Tensor:
        """What the denoiser makes of noisy images, steps and labels."""
        return denoiser(*inputs)


def noised(
    scheduler: Any, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The noisy images, the target and the step of each row, for times `[B]` in [0, 1)."""
    steps = scheduler.config.num_train_timesteps
    timesteps = (times * steps).long().clamp_max(steps - 1).to(images.device)
    return scheduler.add_noise(images, noise, timesteps), target_of(scheduler, images, noise, timesteps), timesteps


def target_of(
    scheduler: DDPMScheduler | DDIMScheduler, images: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor
) -> torch.Tensor:
    """Computes the target of a network with this scheduler's `prediction_type`, `[B, C, H, W]`."""
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        return noise
    if kind == "sample":
        return images
    return scheduler.get_velocity(images, noise, timesteps)
