# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Latents of images, by a public autoencoder (Rombach et al. 2022, Section 3.1)."""

import hashlib
from typing import Any

import torch
from diffusers import AutoencoderKL

from ..queries.perceptual import hash_weights


class LatentEncoder:
    """
    Encodes images to latents, row by row. Scale and shift come from the autoencoder and are public. A scale computed
    from the images, as in some trainers, would leak.

    Args:
        vae (`AutoencoderKL`): Public autoencoder, put into evaluation mode.
    """

    def __init__(self, vae: AutoencoderKL):
        self.vae = vae.eval().requires_grad_(False)
        self.scale = float(vae.config.scaling_factor)
        self.shift = float(vae.config.shift_factor or 0.0)

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Returns the shape of a row for images `(C, H, W)`, whose sides are multiples of the autoencoder's factor."""
        factor = 2 ** (len(self.vae.config.block_out_channels) - 1)
        return self.vae.config.latent_channels, image_shape[1] // factor, image_shape[2] // factor

    @property
    def facts(self) -> dict[str, Any]:
        """All settings that determine a row, for the cache's key and the receipt."""
        config = {key: value for key, value in sorted(self.vae.config.items()) if not key.startswith("_")}
        return {
            "weights_sha256": hash_weights(self.vae),
            "config_sha256": hashlib.sha256(repr(config).encode()).hexdigest(),
            "dtype": str(self.vae.dtype), "scaling_factor": self.scale, "shift_factor": self.shift,
            "rows": "mean", "preprocessing": "[-1, 1]",
        }  # fmt: skip

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Encodes images `[b, C, H, W]` in [-1, 1] to rows `[b, *shape]`, scaled means of posteriors; repeats
        grey channels."""
        images = images.expand(-1, self.vae.config.in_channels, -1, -1).to(self.vae.dtype)
        posterior = self.vae.to(images.device).encode(images).latent_dist
        return (posterior.mean.float() - self.shift) * self.scale

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decodes latents to images `[b, C, H, W]`, in about [-1, 1]."""
        return self.vae.decode((latents / self.scale + self.shift).to(self.vae.dtype)).sample.float()
