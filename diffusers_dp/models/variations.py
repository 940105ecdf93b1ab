# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Candidates of Private Evolution: proposals of a public generator, and variations of those with votes.

All random numbers follow from seeds that the caller draws for each candidate, so that a resumed run proposes the same
candidates again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(kw_only=True)
class CandidateGenerator:
    """
    A public generator. A candidate is a tensor: an image, or the parameters of one, such as those of a drawn letter.

    Args:
        facts (`dict`): JSON facts about the generator, for the receipt; no paths.
        public_inputs (`list[dict]`): Origins of external images and weights, for the receipt; no paths.
        batch_size (`int`, *optional*): Candidates that are made, and kept, at a time. `None`: all of a generation, by
            the first seed alone. Otherwise a candidate follows from its own seed, whatever the batch.
    """

    facts: dict[str, Any]
    public_inputs: list[dict[str, Any]]
    batch_size: int | None = None

    def initial(self, labels: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        """Draws candidates `[m, ...]` of these classes, int64 `[m]`, by seeds, int64 `[m]`."""
        raise NotImplementedError

    def vary(
        self, candidates: torch.Tensor, labels: torch.Tensor, strength: float, seeds: torch.Tensor
    ) -> torch.Tensor:
        """Varies candidates: nearly the same for strength 0, as different as initial ones for 1."""
        raise NotImplementedError

    def images(self, candidates: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Renders candidates as uint8 images, `[m, C, H, W]`."""
        return candidates


def seeded(seed: torch.Tensor) -> torch.Generator:
    """Returns a generator on the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(int(seed))


@dataclass
class PublicImageCandidates(CandidateGenerator):
    """
    Public images, varied by operations on their pixels.

    Args:
        by_class (sequence of `torch.Tensor` of uint8, shape `[n_c, C, H, W]`): Initial images of each class.
        operations (sequence of `str`): Names from `VARIATIONS`, in order.
        facts, public_inputs: See `CandidateGenerator`.
    """

    by_class: Sequence[torch.Tensor]
    operations: Sequence[str]

    def initial(self, labels: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        """Draws images of the classes with replacement, and varies them a little so that none is published as it
        is."""
        luck = torch.rand(len(labels), generator=seeded(seeds[0]))
        drawn = [
            self.by_class[label][int(u * len(self.by_class[label]))] for label, u in zip(labels, luck, strict=True)
        ]
        return self.vary(torch.stack(drawn), labels, 0.5, seeds + 1)

    def vary(
        self, candidates: torch.Tensor, labels: torch.Tensor, strength: float, seeds: torch.Tensor
    ) -> torch.Tensor:
        varied, generator = candidates.float() / 255, seeded(seeds[0])
        for name in self.operations:
            varied = VARIATIONS[name](varied, strength, generator)
        return (varied * 255).round().clamp(0, 255).byte()


# Each function varies images `[m, C, H, W]` in [0, 1] with a strength in [0, 1]; each row has its own draws.


def _signed(count: int, generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draws uniform numbers in [-1, 1]."""
    return 2 * torch.rand(count, *shape, generator=generator) - 1


def affine(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Rotates by up to 25 degrees, scales by up to a quarter per axis, shears by up to 0.4, shifts by up to an eighth
    of the side. Repeats the edge outside."""
    angle, width, height, shear, right, down = (strength * _signed(len(images), generator, 6)).unbind(1)
    angle = angle * (25 * torch.pi / 180)
    cos, sin, x, y = angle.cos(), angle.sin(), 1 + width / 4, 1 + height / 4
    first = torch.stack([cos * x, -sin * y + shear * 0.4, right / 4], 1)
    second = torch.stack([sin * x, cos * y, down / 4], 1)
    return _warp(images, F.affine_grid(torch.stack([first, second], 1), list(images.shape), align_corners=False))


def elastic(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Applies shifts that vary smoothly over the image, up to a tenth of the side (Simard et al. 2003)."""
    side = images.shape[-2:]
    shifts = F.interpolate(_signed(len(images), generator, 2, 5, 5), side, mode="bicubic", align_corners=True)
    straight = torch.eye(2, 3).expand(len(images), 2, 3)
    grid = F.affine_grid(straight, list(images.shape), align_corners=False)
    return _warp(images, grid + strength / 5 * shifts.permute(0, 2, 3, 1))


def stroke(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Grows or shrinks bright lines by up to a pixel."""
    amount = strength * _signed(len(images), generator, 1, 1, 1)
    grown, shrunk = F.max_pool2d(images, 3, 1, 1), -F.max_pool2d(-images, 3, 1, 1)
    return images + amount.clamp_min(0) * (grown - images) - amount.clamp_max(0) * (shrunk - images)


def contrast(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Multiplies contrast about middle grey by up to 2.5. It sharpens images that were warped or enlarged, so it does
    not depend on the strength."""
    gain = 1 + 1.5 * torch.rand(len(images), 1, 1, 1, generator=generator)
    return ((images - 0.5) * gain + 0.5).clamp(0, 1)


def brightness(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Brightens or darkens by up to three tenths; black stays black."""
    return (images * (1 + 0.3 * strength * _signed(len(images), generator, 1, 1, 1))).clamp(0, 1)


def flip(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Mirrors left to right with a probability of half the strength."""
    return torch.where(torch.rand(len(images), 1, 1, 1, generator=generator) < strength / 2, images.flip(3), images)


def _warp(images: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


#: Operations for `--variations`.
VARIATIONS: dict[str, Callable[[torch.Tensor, float, torch.Generator], torch.Tensor]] = {
    "affine": affine, "elastic": elastic, "stroke": stroke, "contrast": contrast, "brightness": brightness,
    "flip": flip,
}  # fmt: skip
