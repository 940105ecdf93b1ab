# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Candidates from public diffusion models: drawn from noise and varied by SDEdit (Meng et al. 2022, Algorithm 1)."""

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils.memory import clear_device_cache
from diffusers import AutoPipelineForImage2Image
from PIL import Image

from ..data.decoding import decode_image
from ..distributed.interruption import is_memory_error
from ..distributed.memory import free_bytes
from ..errors import UsageError, first_line
from ..pipelines import DPImagePipeline
from ..queries.votes import draw_parents
from .variations import CandidateGenerator, seeded


NUMBER = 2  # bytes of a candidate that hold the number of its prompt
MOST_AT_ONCE = 16  # more images at a time are hardly quicker, and are lost together
NUMBERS_OF_A_PIXEL = 2_000  # that a pipeline holds while it draws, guidance included; not measured with real weights


@dataclass
class PipelineCandidates(CandidateGenerator):
    """
    Images of a public model.

    Args:
        pipeline (`DPImagePipeline`): Pipeline of the public model.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_steps (`int`): Number of steps from noise to an image.
        facts, public_inputs, batch_size: See `CandidateGenerator`.
    """

    pipeline: DPImagePipeline
    image_shape: tuple[int, ...]
    num_steps: int

    def initial(self, labels: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        """Draws images from noise, of these classes if the model is conditional."""
        return self._denoised(torch.zeros(len(labels), *self.image_shape, dtype=torch.uint8), labels, 0, seeds)

    def vary(
        self, candidates: torch.Tensor, labels: torch.Tensor, strength: float, seeds: torch.Tensor
    ) -> torch.Tensor:
        """Adds the noise of the last `strength` share of the steps, and removes it by these steps."""
        start = self.num_steps - math.ceil(strength * self.num_steps)
        return candidates if start == self.num_steps else self._denoised(candidates, labels, start, seeds)

    @torch.no_grad()
    def _denoised(self, images: torch.Tensor, labels: torch.Tensor, start: int, seeds: torch.Tensor) -> torch.Tensor:
        """Maps uint8 to uint8 `[m, C, H, W]` by the steps from `start`; from 0 it uses only noise."""
        pipeline = self.pipeline
        device, patch = pipeline.unet.device, pipeline.config.patch_size
        scheduler = copy.deepcopy(pipeline.scheduler)  # because it stores the steps that it took
        scheduler.set_timesteps(self.num_steps, device=device)
        steps = scheduler.timesteps[start:]
        clean = F.pixel_unshuffle(images.float() / 127.5 - 1, patch)
        noise = torch.stack([torch.randn(clean.shape[1:], generator=seeded(seed)) for seed in seeds]).to(device)
        if start == 0:
            latents = noise * scheduler.init_noise_sigma
        else:
            if hasattr(scheduler, "set_begin_index"):
                scheduler.set_begin_index(start)
            latents = scheduler.add_noise(clean.to(device), noise, steps[:1].expand(len(images)))
        known = None if pipeline.num_classes is None else labels.to(device)
        for step in steps:
            output = pipeline.predict(scheduler.scale_model_input(latents, step), step, known, 1.0)
            latents = scheduler.step(output, step, latents).prev_sample
        return ((F.pixel_shuffle(latents.float(), patch) / 2 + 0.5).clamp(0, 1) * 255).round().byte().cpu()


@dataclass
class TextToImageCandidates(CandidateGenerator):
    """
    Images of prompts. A candidate is a row of bytes: the number of its prompt, int16, and an RGB image of the
    pipeline's size, `[side, side, 3]`. Children have the prompt of their parent.

    Args:
        pipeline (`DiffusionPipeline`): Text-to-image pipeline whose image-to-image twin has a `strength`.
        image_shape (`tuple[int, int, int]`): (C, H, W) of images that are shown and released.
        class_names (sequence of `str`): Names for `{class}` in prompts, by label.
        prompts (sequence of `str`): Up to 10,000.
        side (`int`): Side length of the pipeline's images.
        settings (`dict`): Arguments of every call, such as `guidance_scale`.
        votes (`torch.Tensor` of shape `[classes, prompts]`, *optional*): Noisy votes for prompts, by which those of
            the first candidates are drawn; one row serves all classes. `None`: each prompt is as likely.
        facts, public_inputs, batch_size: See `CandidateGenerator`.
    """

    pipeline: Any
    image_shape: tuple[int, int, int]
    class_names: Sequence[str]
    prompts: Sequence[str]
    side: int
    settings: dict[str, Any]
    votes: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.twin = AutoPipelineForImage2Image.from_pipe(self.pipeline)
        self.pipeline.vae.enable_slicing()
        logging.getLogger("diffusers").setLevel(logging.ERROR)  # that of XL changes its type in every call
        self.twin.set_progress_bar_config(disable=True)
        self.twin.watermark = self.pipeline.watermark = None

    def initial(self, labels: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        """Draws an image of a random prompt for each, by its seed."""
        numbers = (seeds % len(self.prompts)).to(torch.int16)
        if (votes := self.votes) is not None:
            own = votes.expand(len(self.class_names), -1)[labels].split(1)
            drawn = [draw_parents(row, 1, seeded(seed + 1)) for row, seed in zip(own, seeds, strict=True)]
            numbers = torch.cat(drawn).flatten().to(torch.int16)
        return self._drawn(self.pipeline, numbers, labels, seeds, height=self.side, width=self.side)

    def vary(
        self, candidates: torch.Tensor, labels: torch.Tensor, strength: float, seeds: torch.Tensor
    ) -> torch.Tensor:
        """Adds the noise of the last `strength` share of the steps, and removes it by these steps."""
        numbers = candidates[:, :NUMBER].contiguous().view(torch.int16).flatten()
        pixels = self._pixels(candidates).permute(0, 3, 1, 2) / 255
        return self._drawn(self.twin, numbers, labels, seeds, image=pixels, strength=strength)

    def images(self, candidates: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Resizes as sensitive images are."""
        pictures = map(Image.fromarray, self._pixels(candidates).numpy())
        return torch.stack([torch.tensor(decode_image(picture, self.image_shape)) for picture in pictures])

    def _pixels(self, candidates: torch.Tensor) -> torch.Tensor:
        return candidates[:, NUMBER:].unflatten(1, (self.side, self.side, 3))

    def _drawn(
        self, pipeline: Any, numbers: torch.Tensor, labels: torch.Tensor, seeds: torch.Tensor, **given: Any
    ) -> torch.Tensor:
        prompts = [
            self.prompts[number].replace("{class}", self.class_names[label])
            for number, label in zip(numbers.tolist(), labels.tolist(), strict=True)
        ]
        generators = [seeded(seed) for seed in seeds]
        try:
            found = pipeline(prompts, generator=generators, output_type="np", **self.settings, **given).images
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if not is_memory_error(error):
                reason = f"draws nothing ({first_line(error)}); choose another"
                raise UsageError(f"The pipeline of --generator {reason}.") from None
            if len(numbers) == 1:
                raise
        else:
            if not np.isfinite(found).all():
                raise UsageError("A pixel is no number in this precision: give --expert generator_precision=float32.")
            pixels = torch.from_numpy((found * 255).round().astype(np.uint8))
            return torch.cat([numbers[:, None].view(torch.uint8), pixels.flatten(1)], 1)
        clear_device_cache(garbage_collection=True)  # only now: the error held on to all that had been computed
        self.batch_size = half = len(numbers) // 2
        return torch.cat([
            self._drawn(pipeline, numbers[part], labels[part], seeds[part], **{
                name: each[part] if name == "image" else each for name, each in given.items()
            })
            for part in (slice(half), slice(half, None))
        ])  # fmt: skip


def at_once(side: int, dtype: torch.dtype, device: torch.device) -> int:
    """Returns how many images of this side length half of the free memory is enough for."""
    return max(1, min(MOST_AT_ONCE, free_bytes(device) // 2 // (side**2 * NUMBERS_OF_A_PIXEL * dtype.itemsize)))
