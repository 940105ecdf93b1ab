# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Augmentation multiplicity: flips and shifts each of the K draws of an image independently (Ghalebikesabi et al.
2023, Section 4).

The loss of a row may depend only on its own image (`gradients/step.py`), so augmentations that mix images are not
possible here. Draws of one image are averaged before its gradient is clipped, so the sensitivity stays the clip norm.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..randomness.private_generator import PrivateGenerator
from .draws import Draws


LARGEST_SHIFT = 8  # a crop is shifted by at most 1/8 of the side: 4 pixels of 32


class AugmentedLoss:
    """A row loss of flipped and shifted images.

    Both operations only move pixels within a row's image. The number of draws depends only on the number of rows.

    Args:
        loss (`Callable`): `RowLoss` of the augmented images.
        operations (sequence of `str`): Operations: `flip` mirrors half of the rows, left to right; `crop` pads by an
            eighth of the side, at least one pixel, mirrored at the edges, and crops to the old size at a uniformly
            random position.
    """

    def __init__(self, loss: Callable[..., torch.Tensor], operations: Sequence[str]):
        self.loss = loss
        self.flip = "flip" in operations
        self.crop = "crop" in operations

    def __call__(
        self,
        model: nn.Module | Any,
        images: torch.Tensor,
        labels: torch.Tensor | None,
        generator: PrivateGenerator | None = None,
    ) -> torch.Tensor:
        """Computes the loss of each row, `[rows]`; see `RowLoss`."""
        return self.loss(model, self.augment(images, generator), labels, generator)

    def augment(self, images: torch.Tensor, generator: PrivateGenerator | None = None) -> torch.Tensor:
        """Augments each of the images `[rows, C, H, W]` independently; keeps the shape."""
        draws, rows = Draws(generator, images.device), len(images)
        height, width = images.shape[2:]
        y, x = torch.arange(height).expand(rows, -1), torch.arange(width).expand(rows, -1)
        if self.flip:
            x = torch.where(draws.uniform(rows)[:, None] < 0.5, width - 1 - x, x)
        if self.crop:
            y = _mirrored(y + _shifts(draws, rows, height), height)
            x = _mirrored(x + _shifts(draws, rows, width), width)
        index = torch.arange(rows)[:, None, None].to(images.device)
        y, x = y[:, :, None].to(images.device), x[:, None, :].to(images.device)
        return images[index, :, y, x].permute(0, 3, 1, 2).contiguous()


def _shifts(draws: Draws, rows: int, side: int) -> torch.Tensor:
    """Draws shifts in whole pixels, `[rows, 1]`, uniform over both directions."""
    most = max(1, side // LARGEST_SHIFT)
    return (draws.uniform(rows) * (2 * most + 1)).long()[:, None] - most


def _mirrored(position: torch.Tensor, side: int) -> torch.Tensor:
    """Maps positions into an image that is mirrored at its first and last pixel."""
    position = position.abs()
    return torch.where(position < side, position, 2 * (side - 1) - position)
