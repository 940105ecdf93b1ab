# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Spatial features: noisy central images per class, by mean (DP-FETA Algorithm 1, FETA-Pro Equation 7) or mode
(DP-FETA Algorithm 2).

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .query import Query


if TYPE_CHECKING:
    import torch


# Side in pixels to which query images are shrunk: averages have no finer detail, and noise grows with pixels.
QUERY_SIZE = 16


def stride_of(image_shape: tuple[int, ...]) -> int:
    """Returns the factor by which a query shrinks images of shape (C, H, W)."""
    return max(1, round(image_shape[1] / QUERY_SIZE))


def small_shape(image_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns the shape (C, h, w) of an image shrunk for a query."""
    channels, height, width = image_shape
    stride = stride_of(image_shape)
    return channels, len(range(0, height, stride)), len(range(0, width, stride))


@dataclass(frozen=True, kw_only=True)
class MeanImages(Query):
    """
    `repeats` noisy mean images of each class, each from a separate Poisson sample of small images.

    The divisor is the expected number of images of a class, `q N / classes`. A small image has `d` values in [0, 1];
    the clip norm is `sqrt(d) / 2`, the norm of a grey image of value 1/2. An image has one class, so this is the
    sensitivity.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
    """

    name = "central_images"
    title = "central images"

    image_shape: tuple[int, ...]

    @property
    def clip_norm(self) -> float:
        return math.prod(small_shape(self.image_shape)) ** 0.5 / 2

    @property
    def num_values(self) -> int:
        return math.prod(small_shape(self.image_shape))

    @property
    def facts(self) -> dict[str, Any]:
        return {"stride": stride_of(self.image_shape)}

    def normaliser(self, num_units: int, num_classes: int) -> float:
        return self.sample_rate * num_units / num_classes

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return _shrunk(images, self.image_shape).flatten(1)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns noisy small images `[repeats, classes, C, h, w]`, float32, in about [0, 1]."""
        return answer.div(self.normaliser(num_units, answer.shape[1])).unflatten(2, small_shape(self.image_shape))


@dataclass(frozen=True, kw_only=True)
class ModeImages(MeanImages):
    """
    `repeats` noisy histograms of every value of each class's small images, and the mode image of each.

    Bin k of 1, ..., `num_bins` covers the values in `((k - 1) / num_bins, k / num_bins]`; the first bin includes 0
    (DP-FETA Section 3.1.2). An image adds one vote to one bin for each of `d` values, so the clip norm is `sqrt(d)`
    (Theorem 3.3).

    Args:
        num_bins (`int`): Number of bins, from 2 to 256.
    """

    name = "mode_images"
    title = "mode images"

    num_bins: int

    @property
    def clip_norm(self) -> float:
        return math.prod(small_shape(self.image_shape)) ** 0.5

    @property
    def num_values(self) -> int:
        return self.num_bins * super().num_values

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "num_bins": self.num_bins}

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        import torch.nn.functional as F

        # Whole numbers, so that the bounds of bins are exact.
        levels = (_shrunk(images, self.image_shape) * 255).round().long()
        bins = (levels * self.num_bins - 1).clamp_min(0).div(255, rounding_mode="floor")
        return F.one_hot(bins, self.num_bins).to(images.dtype).flatten(1)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns the middle of each value's fullest bin, `(2 k - 1) / (2 num_bins)` (Equation 7): `[repeats, classes,
        C, h, w]` in (0, 1), float32."""
        return (answer.unflatten(2, (*small_shape(self.image_shape), self.num_bins)).argmax(-1) + 0.5) / self.num_bins


def restore_central_images(noisy: "torch.Tensor", image_shape: tuple[int, ...]) -> "torch.Tensor":
    """Restores noisy small central images to full size, as post-processing of a noisy answer.

    Clamps, up-samples bilinearly and rounds to 8 bits. Images that were shrunk get a 3x3 median filter and, if grey, a
    3x3 sharpening filter.

    Args:
        noisy (`torch.Tensor` of shape `[n, C, h, w]`): Finished answer of `MeanImages` or `ModeImages`, flattened over
            classes.

    Returns:
        `torch.Tensor` of uint8, shape `[n, C, H, W]`.
    """
    import numpy as np
    import torch
    import torch.nn.functional as F
    from PIL import Image, ImageFilter

    channels, height, width = image_shape
    images = F.interpolate(noisy.clamp(0, 1).cpu(), size=(height, width), mode="bilinear", align_corners=False)
    images = images.mul(255).round().byte()
    if noisy.shape[-2:] == (height, width):
        return images
    restored = []
    for image in images:
        array = image.permute(1, 2, 0).numpy()
        picture = Image.fromarray(array[:, :, 0] if channels == 1 else array).filter(ImageFilter.MedianFilter(3))
        if channels == 1:
            picture = picture.filter(ImageFilter.Kernel((3, 3), (0, -1, 0, -1, 5, -1, 0, -1, 0)))
        restored.append(torch.from_numpy(np.array(picture).reshape(height, width, channels)).permute(2, 0, 1))
    return torch.stack(restored)


def _shrunk(images: "torch.Tensor", image_shape: tuple[int, ...]) -> "torch.Tensor":
    stride = stride_of(image_shape)
    return images[:, :, ::stride, ::stride]
