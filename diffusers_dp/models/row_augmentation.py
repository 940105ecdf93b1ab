# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Augmentation multiplicity: each of the K draws of an image is flipped and shifted by itself (Ghalebikesabi et al.
2023, Section 4).

The loss of a row may depend on its own image alone (`gradients/step.py`), so there is no way in here for an
augmentation that mixes images. Draws of one image are averaged before its gradient is clipped, whatever befell them:
the sensitivity stays the clip norm.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..randomness.private_generator import PrivateGenerator
from .draws import Draws


LARGEST_SHIFT = 8  # the part of the side by which a crop is shifted at most: 4 pixels of 32


class AugmentedLoss:
    """A row loss of flipped and shifted images.

    Both operations only choose which pixel of a row's own image stands where. How much is drawn depends on the number
    of rows alone.

    Args:
        loss (`Callable`): A `RowLoss`, of the augmented images.
        operations (sequence of `str`): `flip` mirrors half of the rows, left to right; `crop` pads by an eighth of the
            side, at least one pixel, mirrored at the edges, and crops to the old size at a place that is uniformly
            random.
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
        """Loss of each row, `[rows]`; see `RowLoss`."""
        return self.loss(model, self.augment(images, generator), labels, generator)

    def augment(self, images: torch.Tensor, generator: PrivateGenerator | None = None) -> torch.Tensor:
        """Images `[rows, C, H, W]`, each augmented by itself, of the same shape."""
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
    """Whole numbers of pixels, `[rows, 1]`, uniform over both directions."""
    most = max(1, side // LARGEST_SHIFT)
    return (draws.uniform(rows) * (2 * most + 1)).long()[:, None] - most


def _mirrored(position: torch.Tensor, side: int) -> torch.Tensor:
    """Where a position lies once the image is mirrored at its first and at its last pixel."""
    position = position.abs()
    return torch.where(position < side, position, 2 * (side - 1) - position)
