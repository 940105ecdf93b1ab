"""EDM preconditioning and loss around a plain `UNet2DModel`."""

import contextlib

import torch
import torch.nn.functional as F
from diffusers import UNet2DModel
from torch import nn

from ..randomness import PrivateGenerator


class EDMDenoiser(nn.Module):
    """Training-time wrapper: a denoiser `D(x; sigma)` made of a `UNet2DModel`.

    `D(x; sigma) = c_skip(sigma) x + c_out(sigma) F(c_in(sigma) x, ln(sigma) / 4)` (Karras et al. 2022, Equation 7 and Table 1),
    which is what Diffusers' EDM schedulers expect of a UNet. The wrapper holds no parameters of its own, so that the release
    contains the plain `UNet2DModel`; `sigma_data` travels in the scheduler's config.

    Args:
        unet (`UNet2DModel`): Class-conditional if it has `num_class_embeds` rows; the last row is the null label.
        sigma_data (`float`): Standard deviation of the images in [-1, 1] that the preconditioning assumes; a public constant.
        patch_size (`int`, defaults to 1): The UNet sees images whose patches of this side length are folded into channels.
        autocast_dtype (`torch.dtype`, *optional*): `torch.bfloat16` runs the UNet in mixed precision; the preconditioning around it,
            the weights and their gradients stay float32.

    Raises:
        ValueError: Another `autocast_dtype`; float16 needs loss scaling, which changes gradients before they are clipped.
    """

    def __init__(
        self,
        unet: UNet2DModel,
        sigma_data: float = 0.577,
        patch_size: int = 1,
        autocast_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if autocast_dtype not in (None, torch.bfloat16):
            raise ValueError(f"autocast_dtype must be torch.bfloat16 or None, not {autocast_dtype}.")
        self.unet = unet
        self.sigma_data = sigma_data
        self.patch_size = patch_size
        self.autocast_dtype = autocast_dtype

    def forward(
        self, sample: torch.Tensor, sigma: torch.Tensor, class_labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise.

        Args:
            sample (`torch.Tensor` of shape `[B, C, H, W]`): Images in [-1, 1] plus noise of standard deviation `sigma`.
            sigma (`torch.Tensor` of shape `[B]`): Noise levels, > 0.
            class_labels (`torch.LongTensor` of shape `[B]`, *optional*): Rows of the class table.

        Returns:
            `torch.Tensor` of shape `[B, C, H, W]`: The estimate of the clean images.
        """
        variance = sigma**2 + self.sigma_data**2
        c_skip = self.sigma_data**2 / variance
        c_out = sigma * self.sigma_data / variance.sqrt()
        c_in = 1 / variance.sqrt()
        folded = F.pixel_unshuffle(_broadcast(c_in) * sample, self.patch_size)
        with self._precision(sample.device.type):
            output = self.unet(folded, sigma.log() / 4, class_labels=class_labels).sample.to(sample.dtype)
        return _broadcast(c_skip) * sample + _broadcast(c_out) * F.pixel_shuffle(output, self.patch_size)

    def _precision(self, device_type: str) -> contextlib.AbstractContextManager:
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device_type, self.autocast_dtype)


class EDMLoss:
    """The weighted denoising loss of EDM, one value per row (Karras et al. 2022, Equation 8 and Table 1).

    Each row draws its own noise level, `ln(sigma) ~ N(P_mean, P_std^2)`, its own noise, and drops its label for the null label
    with probability `label_dropout`. In DP-SGD these draws come from the door's secret source (`generator`), elsewhere from torch's
    seeded one.

    Args:
        label_dropout (`float`, defaults to 0.1): Probability of the null label, in [0, 1).
        p_mean (`float`, defaults to -1.2): Mean of ln(sigma).
        p_std (`float`, defaults to 1.2): Standard deviation of ln(sigma).
    """

    def __init__(self, label_dropout: float = 0.1, p_mean: float = -1.2, p_std: float = 1.2):
        self.label_dropout = label_dropout
        self.p_mean = p_mean
        self.p_std = p_std

    def __call__(
        self,
        denoiser: EDMDenoiser,
        images: torch.Tensor,
        labels: torch.Tensor | None,
        generator: PrivateGenerator | None = None,
    ) -> torch.Tensor:
        """Loss of each row, shape `[B]`; `images` of shape `[B, C, H, W]` in [-1, 1], `labels` of shape `[B]` or `None`."""

        def normal(*shape: int) -> torch.Tensor:
            if generator is None:
                return torch.randn(shape, device=images.device)
            return generator.normal(shape, 1.0, images.device)

        sigma = (normal(len(images)) * self.p_std + self.p_mean).exp()
        if labels is not None:
            null_label = denoiser.unet.config.num_class_embeds - 1
            uniform = (
                torch.rand(len(labels)) if generator is None else torch.from_numpy(generator.uniform(len(labels)))
            )
            labels = labels.masked_fill((uniform < self.label_dropout).to(labels.device), null_label)
        noisy = images + _broadcast(sigma) * normal(*images.shape)
        error = (denoiser(noisy, sigma, labels) - images).square().flatten(1).mean(1)
        weight = (sigma**2 + denoiser.sigma_data**2) / (sigma * denoiser.sigma_data) ** 2
        return weight * error


def _broadcast(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)
