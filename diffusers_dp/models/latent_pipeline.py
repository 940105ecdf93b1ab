# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Sampling from a network of latents, with the interface of `DPImagePipeline`."""

from typing import Any

import torch
from diffusers import AutoencoderKL, ImagePipelineOutput

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

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decodes latents to images `[B, C, H, W]`, in about [-1, 1]."""
        return LatentEncoder(self.vae).decode(latents)

    def check_scheduler(self) -> None:
        """The scheduler is that of the denoiser."""

    def check_inputs(self, *arguments: Any) -> int:
        """Checks inputs as `DPImagePipeline` does; refuses `heun`, which needs EDM."""
        if arguments[5] == "heun":
            raise ValueError("`solver` has to be 'dpm': this model has its own steps, but 'heun' needs EDM's.")
        return super().check_inputs(*arguments)  # refuses `hmc`, too

    @torch.no_grad()
    def __call__(
        self, *arguments: Any, callback_on_step_end: Any = None, **keywords: Any
    ) -> ImagePipelineOutput | tuple:
        """Samples as `DPImagePipeline` does and decodes the latents of the last step; callbacks receive latents."""

        def after_step(pipeline: Any, step: int, timestep: torch.Tensor, tensors: dict[str, Any]) -> dict[str, Any]:
            if callback_on_step_end is not None:
                tensors = {**tensors, **callback_on_step_end(pipeline, step, timestep, tensors)}
            if step == len(self.scheduler.timesteps) - 1:
                tensors["latents"] = self.decode(tensors["latents"])
            return tensors

        return super().__call__(*arguments, callback_on_step_end=after_step, **keywords)
