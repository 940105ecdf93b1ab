"""EDM's preconditioning and loss for a plain `UNet2DModel`, and DDPM's discrete-time objective, as a scheduler of
Diffusers describes it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from torch import nn

from ..randomness.private_generator import PrivateGenerator
from ..randomness.timestep_mixture import TIMESTEPS, TimestepMixture
from .draws import Draws


SIGMA_DATA = 0.577  # EDM's standard deviation of images in [-1, 1], sqrt(1/3): that of all papers' recipes
#: A `RowLoss` that draws from torch if it gets no secret source.
TrainingLoss = Callable[..., torch.Tensor]
SMALLEST_TIME = 1e-9  # because the quantile 0 would give a noise level of 0


def mixed_precision(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager:
    """Networks compute in `dtype` in here; without one, as around it."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


class Denoiser(nn.Module):
    """Training wrapper of a `UNet2DModel`. It adds no parameters, so the release contains the plain UNet.

    Args:
        unet (`UNet2DModel`): Network, class-conditional if it has `num_class_embeds` rows; the last row is the null
            label.
        patch_size (`int`, defaults to 1): Side length of the patches that are folded into channels for the UNet.
        autocast_dtype (`torch.dtype`, *optional*): `torch.bfloat16` runs the UNet in mixed precision; weights,
            gradients and all other computation stay float32. `per_example_gradients` refuses float16.
    """

    def __init__(self, unet: UNet2DModel, patch_size: int = 1, autocast_dtype: torch.dtype | None = None):
        super().__init__()
        self.unet = unet
        self.patch_size = patch_size
        self.autocast_dtype = autocast_dtype

    @property
    def null_label(self) -> int:
        """Row of the class table for "no label"."""
        return self.unet.config.num_class_embeds - 1

    def network(
        self, sample: torch.Tensor, noise_condition: torch.Tensor, class_labels: torch.Tensor | None
    ) -> torch.Tensor:
        """Computes the UNet's output for images `[B, C, H, W]` and noise conditions `[B]`, in the shape and type of
        `sample`."""
        with mixed_precision(sample.device, self.autocast_dtype):
            folded = F.pixel_unshuffle(sample, self.patch_size)
            output = self.unet(folded, noise_condition, class_labels=class_labels).sample
        return F.pixel_shuffle(output.to(sample.dtype), self.patch_size)


def in_mixed_precision(denoiser: Any, dtype: torch.dtype | None) -> Any:
    """The same network in another type, if that is given; latents, which were not measured, stay as they are."""
    if dtype is not None and isinstance(denoiser, Denoiser):
        denoiser = copy(denoiser)  # DP-SGD's own keeps its type
        denoiser.autocast_dtype = dtype
    return denoiser


class EDMDenoiser(Denoiser):
    """A denoiser `D(x; sigma)` made from a `UNet2DModel`.

    `D(x; sigma) = c_skip(sigma) x + c_out(sigma) F(c_in(sigma) x, ln(sigma) / 4)` (Karras et al. 2022, Equation 7 and
    Table 1), as Diffusers' EDM schedulers expect. The scheduler's config stores `sigma_data`.

    Args:
        unet, patch_size, autocast_dtype: See `Denoiser`.
        sigma_data (`float`): Standard deviation that the preconditioning assumes for images in [-1, 1]; a public
            constant.
    """

    def __init__(
        self,
        unet: UNet2DModel,
        sigma_data: float = SIGMA_DATA,
        patch_size: int = 1,
        autocast_dtype: torch.dtype | None = None,
    ):
        super().__init__(unet, patch_size, autocast_dtype)
        self.sigma_data = sigma_data

    def forward(
        self, sample: torch.Tensor, sigma: torch.Tensor, class_labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Estimates the clean images.

        Args:
            sample (`torch.Tensor` of shape `[B, C, H, W]`): Images in [-1, 1] plus noise of standard deviation
                `sigma`.
            sigma (`torch.Tensor` of shape `[B]`): Noise levels, > 0.
            class_labels (`torch.LongTensor` of shape `[B]`, *optional*): Rows of the class table.

        Returns:
            `torch.Tensor` of shape `[B, C, H, W]`: Estimated clean images.
        """
        variance = sigma**2 + self.sigma_data**2
        c_skip = self.sigma_data**2 / variance
        c_out = sigma * self.sigma_data / variance.sqrt()
        c_in = 1 / variance.sqrt()
        output = self.network(_broadcast(c_in) * sample, sigma.log() / 4, class_labels)
        return _broadcast(c_skip) * sample + _broadcast(c_out) * output


class DenoisingLoss:
    """A denoising loss, one value per row.

    Each row draws a time and noise, and replaces its label by the null label with probability `label_dropout`. In
    DP-SGD these draws come from the door's secret source (`generator`), elsewhere from torch's seeded one.

    Args:
        label_dropout (`float`, defaults to 0.1): Probability of the null label, in [0, 1).
        mixture (`TimestepMixture`, *optional*): Distribution of the times, as shares of their number; defaults to
            uniform.
    """

    def __init__(self, label_dropout: float = 0.1, mixture: TimestepMixture | None = None):
        self.label_dropout, self.mixture = label_dropout, mixture

    def __call__(
        self,
        denoiser: Any,
        images: torch.Tensor,
        labels: torch.Tensor | None,
        generator: PrivateGenerator | None = None,
    ) -> torch.Tensor:
        """Computes the loss of each row, `[B]`, from images `[B, C, H, W]` in [-1, 1], or latents, and labels `[B]` or
        `None`."""
        draws = Draws(generator, images.device)
        times = self.times(draws, len(images))
        if labels is not None:
            labels = draws.drop_labels(labels, self.label_dropout, denoiser.null_label)
        return self.at(denoiser, images, labels, draws.normal(*images.shape), times)

    def times(self, draws: Draws, rows: int) -> torch.Tensor:
        """Draws times in [0, 1), `[rows]`, float64."""
        times = draws.uniform(rows)
        return times if self.mixture is None else torch.from_numpy(self.mixture.times(times.numpy()))

    def at(
        self, denoiser: Any, images: torch.Tensor, labels: torch.Tensor | None, noise: torch.Tensor,
        times: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Computes the losses for given noise `[B, C, H, W]` and times `[B]`."""
        raise NotImplementedError


class EDMLoss(DenoisingLoss):
    """EDM's weighted denoising loss (Karras et al. 2022, Equation 8 and Table 1), with noise levels `ln(sigma) ~
    N(P_mean, P_std^2)`.

    A `mixture` replaces the uniform quantiles of noise levels: for a diffusion time t in [0, 1), `ln(sigma) = P_mean +
    P_std * Phi^-1(t)`. An interval 200-800 therefore covers the middle 60 % of EDM's noise levels.

    Args:
        label_dropout, mixture: See `DenoisingLoss`.
        p_mean (`float`, defaults to -1.2): Mean of ln(sigma).
        p_std (`float`, defaults to 1.2): Standard deviation of ln(sigma).
    """

    def __init__(
        self,
        label_dropout: float = 0.1,
        p_mean: float = -1.2,
        p_std: float = 1.2,
        mixture: TimestepMixture | None = None,
    ):
        super().__init__(label_dropout, mixture)
        self.p_mean, self.p_std = p_mean, p_std

    def times(self, draws: Draws, rows: int) -> torch.Tensor:
        """Draws standardised ln(sigma), `[rows]`."""
        if self.mixture is None:
            return draws.normal(rows)
        return torch.special.ndtri(super().times(draws, rows).clamp_min(SMALLEST_TIME)).float().to(draws.device)

    def at(
        self, denoiser: Any, images: torch.Tensor, labels: torch.Tensor | None, noise: torch.Tensor,
        times: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        sigma = (times * self.p_std + self.p_mean).exp()
        noisy = images + _broadcast(sigma) * noise
        target = self.target(images, noisy, sigma, labels)
        error = (denoiser(noisy, sigma, labels) - target).square().flatten(1).mean(1)
        return (sigma**2 + denoiser.sigma_data**2) / (sigma * denoiser.sigma_data) ** 2 * error

    def target(
        self, images: torch.Tensor, noisy: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        """What the denoiser should return: the clean images."""
        return images


def _broadcast(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)


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
        scheduler, kind = denoiser.scheduler, denoiser.scheduler.config.prediction_type
        steps = scheduler.config.num_train_timesteps
        timesteps = (times * steps).long().clamp_max(steps - 1).to(images.device)
        prediction = self.predict(denoiser, scheduler.add_noise(images, noise, timesteps), timesteps, labels)
        if kind in ("epsilon", "sample"):
            target = noise if kind == "epsilon" else images
        else:
            target = scheduler.get_velocity(images, noise, timesteps)
        return F.mse_loss(prediction, target, reduction="none").flatten(1).mean(1)

    def predict(self, denoiser: Any, *inputs: torch.Tensor | None) -> torch.Tensor:
        """What the denoiser makes of noisy images, steps and labels."""
        return denoiser(*inputs)
