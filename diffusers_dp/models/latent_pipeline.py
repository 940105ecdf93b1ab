# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Sampling from a network of latents, with the interface of `DPImagePipeline`."""

from typing import Any

import torch
from diffusers import AutoencoderKL

from ..pipelines import DPImagePipeline
from .latent_denoiser import LatentDenoiser
from .latents import LatentEncoder


class LatentImagePipeline(DPImagePipeline):
    """
    Draws latents and decodes them. Releases contain the parts of it that Diffusers defines, never this class.

    Args:
        unet (`LatentDenoiser`): Denoiser with its scheduler and conditions.
        scheduler (`DDIMScheduler`): Scheduler of the denoiser.
        vae (`AutoencoderKL`): Autoencoder of the latents.
        id2label, patch_size, privacy, formulation: See `DPImagePipeline`; latents are not folded.
    """

    model_cpu_offload_seq = "unet->vae"

    def __init__(
        self,
        unet: LatentDenoiser,
        scheduler: Any,
        vae: AutoencoderKL,
        id2label: dict | None = None,
        patch_size: int = 1,
        privacy: dict | None = None,
        formulation: str | None = None,
    ):
        super().__init__(unet, scheduler, id2label, 1, privacy, formulation)
        self.register_modules(vae=vae.eval())

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        factor = 2 ** (len(self.vae.config.block_out_channels) - 1)
        size = self.unet.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        return self.vae.config.out_channels, height * factor, width * factor

    def save_pretrained(self, *arguments: Any, **keywords: Any) -> None:
        """Raises `NotImplementedError`: Diffusers would leave out the network, which is no model of its classes."""
        raise NotImplementedError("A latent pipeline is not saved: copy the folder of the release that it draws from.")

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decodes latents to images `[B, C, H, W]`, in about [-1, 1]."""
        return LatentEncoder(self.vae).decode(latents)
