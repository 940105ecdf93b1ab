# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Candidates from a public diffusion model: drawn from noise and varied by SDEdit (Meng et al. 2022, Algorithm 1)."""

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from ..pipelines import DPImagePipeline
from .variations import CandidateGenerator


@dataclass
class PipelineCandidates(CandidateGenerator):
    """
    Images of a public model.

    Args:
        pipeline (`DPImagePipeline`): Pipeline of the public model.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_steps (`int`): Number of steps from noise to an image.
        facts, public_inputs: See `CandidateGenerator`.
        batch_size (`int`, defaults to 250): Number of images at a time.
    """

    pipeline: DPImagePipeline
    image_shape: tuple[int, ...]
    num_steps: int
    batch_size: int = 250

    def initial(self, labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draws images from noise, of these classes if the model is conditional."""
        blank = torch.zeros(len(labels), *self.image_shape, dtype=torch.uint8)
        return self._denoised(blank, labels, 0, generator)

    def vary(
        self, candidates: torch.Tensor, labels: torch.Tensor, strength: float, generator: torch.Generator
    ) -> torch.Tensor:
        """Adds the noise of the last `strength` share of the steps, and removes it by these steps."""
        start = self.num_steps - math.ceil(strength * self.num_steps)
        return candidates if start == self.num_steps else self._denoised(candidates, labels, start, generator)

    @torch.no_grad()
    def _denoised(
        self, images: torch.Tensor, labels: torch.Tensor, start: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Maps uint8 to uint8 `[m, C, H, W]` by the steps from `start`; from 0 it uses only noise."""
        pipeline, found = self.pipeline, []
        device, patch = pipeline.unet.device, pipeline.config.patch_size
        parts = list(zip(images.split(self.batch_size), labels.split(self.batch_size), strict=True))
        for part, classes in tqdm(parts, desc="Candidates", unit="batch", leave=False):
            scheduler = copy.deepcopy(pipeline.scheduler)  # because it stores the steps that it took
            scheduler.set_timesteps(self.num_steps, device=device)
            steps = scheduler.timesteps[start:]
            clean = F.pixel_unshuffle(part.float() / 127.5 - 1, patch)
            noise = torch.randn(clean.shape, generator=generator).to(device)
            if start == 0:
                latents = noise * scheduler.init_noise_sigma
            else:
                if hasattr(scheduler, "set_begin_index"):
                    scheduler.set_begin_index(start)
                latents = scheduler.add_noise(clean.to(device), noise, steps[:1].expand(len(part)))
            known = None if pipeline.num_classes is None else classes.to(device)
            for step in steps:
                output = pipeline.predict(scheduler.scale_model_input(latents, step), step, known, 1.0)
                latents = scheduler.step(output, step, latents).prev_sample
            pixels = F.pixel_shuffle(latents.float(), patch) / 2 + 0.5
            found.append((pixels.clamp(0, 1) * 255).round().byte().cpu())
        return torch.cat(found)
