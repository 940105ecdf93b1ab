# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Latents of images, by a public autoencoder (Rombach et al. 2022, Section 3.1)."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from diffusers import AutoencoderKL

from ..queries.perceptual import hash_weights
from ..randomness.private_generator import PrivateGenerator
from .draws import Draws


class LatentEncoder:
    """
    Encodes images to latents, row by row. Scale and shift come from the autoencoder and are public. A scale computed
    from the images, as in some trainers, would leak.

    Args:
        vae (`AutoencoderKL`): Public autoencoder, put into evaluation mode.
        draw_posterior (`bool`): Whether rows contain mean and log-variance of the latent, for `PosteriorLoss`, or only
            the mean.
    """

    def __init__(self, vae: AutoencoderKL, *, draw_posterior: bool = False):
        self.vae = vae.eval().requires_grad_(False)
        self.draw_posterior = draw_posterior
        self.scale = float(vae.config.scaling_factor)
        self.shift = float(vae.config.shift_factor or 0.0)

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Returns the shape of a row for images `(C, H, W)`.

        Raises:
            ValueError: The autoencoder does not accept such images.
        """
        channels, height, width = image_shape
        factor = 2 ** (len(self.vae.config.block_out_channels) - 1)
        taken = self.vae.config.in_channels
        if channels not in (1, taken) or height % factor or width % factor:
            raise ValueError(f"images of {taken} channels, and of sides that are multiples of {factor}")
        rows = self.vae.config.latent_channels * (2 if self.draw_posterior else 1)
        return rows, height // factor, width // factor

    @property
    def facts(self) -> dict[str, Any]:
        """All settings that determine a row, for the cache's key and the receipt."""
        config = {key: value for key, value in sorted(self.vae.config.items()) if not key.startswith("_")}
        return {
            "weights_sha256": hash_weights(self.vae),
            "config_sha256": hashlib.sha256(repr(config).encode()).hexdigest(),
            "dtype": str(self.vae.dtype), "scaling_factor": self.scale, "shift_factor": self.shift,
            "rows": "mean and log-variance" if self.draw_posterior else "mean", "preprocessing": "[-1, 1]",
        }  # fmt: skip

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Encodes images `[b, C, H, W]` in [-1, 1] to scaled rows `[b, *shape]`; repeats grey channels."""
        images = images.expand(-1, self.vae.config.in_channels, -1, -1).to(self.vae.dtype)
        posterior = self.vae.to(images.device).encode(images).latent_dist
        mean = (posterior.mean.float() - self.shift) * self.scale
        if not self.draw_posterior:
            return mean
        return torch.cat([mean, posterior.logvar.float() + 2 * math.log(self.scale)], 1)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decodes latents to images `[b, C, H, W]`, in about [-1, 1]."""
        return self.vae.decode((latents / self.scale + self.shift).to(self.vae.dtype)).sample.float()


class PosteriorLoss:
    """
    A row loss of latents drawn from their posterior, independently per row, from the loss's secret source.

    Args:
        loss (`Callable`): `RowLoss` of latents.
    """

    def __init__(self, loss: Callable[..., torch.Tensor]):
        self.loss = loss

    def __call__(
        self,
        model: Any,
        rows: torch.Tensor,
        labels: torch.Tensor | None,
        generator: PrivateGenerator | None = None,
    ) -> torch.Tensor:
        """Computes the loss `[b]` of rows `[2C, H, W]` of mean and log-variance; see `RowLoss`."""
        mean, log_variance = rows.chunk(2, 1)
        noise = Draws(generator, rows.device).normal(*mean.shape)
        return self.loss(model, mean + (log_variance / 2).exp() * noise, labels, generator)
