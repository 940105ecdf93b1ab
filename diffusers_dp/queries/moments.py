# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Moments of low frequencies: noisy counts, means and covariances of the images of each class, and of its parts.

An image is described by the coefficients of its lowest two-dimensional cosine waves (DCT-II, orthonormal) about grey
1/2. Colour is turned into luma and two chroma channels by an orthonormal matrix first.

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .query import Query
from .votes import NearestCandidates


if TYPE_CHECKING:
    import torch

    from ..privacy.separate_records import Features

BAND = 4  # half periods; pairs of waves of two bands are denoised together
CHROMA_SHARE = 4  # chroma has a quarter of luma's frequencies
COUNT = 0.5  # entry of a row that counts images, in units of the longest that the others can be


class Frequencies:
    """
    A linear map between images and their weighted low frequencies.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W), with 1 or 3 channels.
        number (`int`): Frequencies of grey or luma, lowest first; at most H W are there. Chroma has a quarter.

    Attributes:
        waves (`torch.Tensor` of shape `[D, C * H * W]`): Orthonormal waves.
        weights (`torch.Tensor` of shape `[D]`): `sqrt(1 + f)` for a wave of f half periods. Deviations in natural
            images fall as 1 / (1 + f); after the weights, they fall as 1 / `weights`.
        bands (`torch.Tensor` of int64, shape `[D]`): The same for waves of one channel and of about one frequency.
    """

    def __init__(self, image_shape: tuple[int, ...], number: int):
        import torch

        self.image_shape = image_shape
        channels, height, width = image_shape
        down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        radius = (down.square() + across.square()).double().sqrt().flatten()
        lowest = radius.argsort(stable=True)[:number]
        kept = [lowest, *[lowest[: max(1, number // CHROMA_SHARE)]] * (channels - 1)]
        which = torch.cat(kept)
        tall, wide = _cosines(height).float()[down.flatten()[which]], _cosines(width).float()[across.flatten()[which]]
        channel = torch.arange(channels).repeat_interleave(torch.tensor([len(each) for each in kept]))
        colours = _colours(channels)[channel]
        # Small factors first: the product is the only large one in memory.
        self.waves = torch.einsum("kcy,kx->kcyx", torch.einsum("kc,ky->kcy", colours, tall), wide).flatten(1)
        self.weights = (1 + radius[which]).sqrt().float()
        self.bands = (radius[which] / BAND).round().long() + height * width * channel

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to weighted coefficients `[b, D]`."""
        return (images - 0.5).flatten(1) @ self.waves.to(images).T * self.weights.to(images)

    @property
    def longest(self) -> float:
        """`sqrt(C H W) / 2`: no coefficients without weights are longer."""
        return math.prod(self.image_shape) ** 0.5 / 2

    def images(self, coefficients: "torch.Tensor") -> "torch.Tensor":
        """Maps weighted coefficients `[b, D]` to images `[b, C, H, W]`, which may leave [0, 1]."""
        return (coefficients / self.weights @ self.waves + 0.5).unflatten(1, self.image_shape)


def all_frequencies(image_shape: tuple[int, ...]) -> int:
    """The number with which `Frequencies` leaves nothing out."""
    channels, height, width = image_shape
    return height * width * (1 if channels == 1 else CHROMA_SHARE)


def _cosines(side: int) -> "torch.Tensor":
    import torch

    waves = torch.arange(side).double()[:, None] * (torch.arange(side).double() + 0.5) * math.pi / side
    return waves.cos() * torch.where(torch.arange(side) == 0, 1 / side, 2 / side).sqrt()[:, None]


def _colours(channels: int) -> "torch.Tensor":
    """Luma and chroma, or each channel by itself where there are not three."""
    import torch

    if channels != 3:
        return torch.eye(channels)
    rows = torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]])
    return rows / rows.norm(dim=1, keepdim=True)


def num_coefficients(image_shape: tuple[int, ...], number: int) -> int:
    """D of `Frequencies`, without torch."""
    channels, height, width = image_shape
    luma = min(height * width, number)
    return luma + (channels - 1) * min(luma, max(1, number // CHROMA_SHARE))


@dataclass(frozen=True, kw_only=True)
class MomentQuery(Query):
    """
    Base of the queries about frequencies. A row is divided by the longest that it can be: the sensitivity is 1.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_frequencies (`int`): See `Frequencies`.
    """

    image_shape: tuple[int, ...]
    num_frequencies: int

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_frequencies": self.num_frequencies}

    @property
    def num_dimensions(self) -> int:
        """D."""
        return num_coefficients(self.image_shape, self.num_frequencies)

    @cached_property
    def spectrum(self) -> Frequencies:
        return Frequencies(self.image_shape, self.num_frequencies)


@dataclass(frozen=True, kw_only=True)
class ClassMoments(MomentQuery):
    """
    The number of images of each class, the sum of their coefficients, and of the squared lengths after the weights.

    No image is clipped, because no coefficients without weights are longer than `Frequencies.longest`.
    """

    name = "class_moments"
    title = "counts and means"

    @property
    def num_values(self) -> int:
        return self.num_dimensions + 3

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        import torch

        weighted = self.spectrum(images) / self.spectrum.longest
        weights = self.spectrum.weights.to(weighted)
        energy = weighted.square().sum(1, keepdim=True) / weights.max().square()
        row = torch.cat([weighted / weights, torch.full_like(energy, COUNT), COUNT * energy], 1)
        row = row / math.hypot(1, COUNT, COUNT)
        # What is missing from the norm 1 is one more entry, so that an audit can measure the sensitivity.
        return torch.cat([row, (1 - row.square().sum(1, keepdim=True)).clamp_min(0).sqrt()], 1)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns sums `[classes, D + 2]`: of weighted coefficients, of images, and of squared lengths."""
        import torch

        weights, longest = self.spectrum.weights, self.spectrum.longest
        last = torch.tensor([1.0, float(longest * weights.max()) ** 2]) / COUNT
        return answer[0, :, :-1] * math.hypot(1, COUNT, COUNT) * torch.cat([longest * weights, last])


class PartRows:
    """
    Features of an image: a row in the place of its part, the centre of its class that is nearest to it.

    The choice follows from the image to the last bit, see `NearestCandidates`.

    Args:
        spectrum (`Frequencies`): The map to coefficients.
        centres (`torch.Tensor` of shape `[classes, P, D]`): Weighted coefficients of the centres, noisy.
        clip (`float`): Bound on the length of the difference to the image's own centre.
        pairs (`bool`): Whether the row has products of two coefficients of the difference, or the difference.
    """

    def __init__(self, spectrum: Frequencies, centres: "torch.Tensor", clip: float, pairs: bool):
        import torch

        self.spectrum, self.centres, self.clip, self.pairs = spectrum, centres, clip, pairs
        self.nearest = NearestCandidates(spectrum, centres)
        self.first, self.second = torch.triu_indices(centres.shape[2], centres.shape[2])
        self.twice = torch.where(self.first == self.second, 1.0, math.sqrt(2))

    def __call__(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] and labels, int64 `[b]` or `None`, to features `[b, P * d]`, where d is
        1 + D or 1 + D (D + 1) / 2."""
        import torch

        chosen = self.nearest(images, labels)  # [b, P], 1 for the nearest
        own = self.centres.to(images)
        own = own[labels] if labels is not None else own[:1].expand(len(images), -1, -1)
        moved = self.spectrum(images) - (chosen[:, :, None] * own).sum(1)
        moved = moved / moved.norm(dim=1, keepdim=True).clamp_min(self.clip)
        if self.pairs:
            moved = moved[:, self.first] * moved[:, self.second] * self.twice.to(images)
        row = torch.cat([torch.full_like(moved[:, :1], COUNT), moved], 1) / math.hypot(1, COUNT)
        return (chosen[:, :, None] * row[:, None]).flatten(1)


@dataclass(frozen=True, kw_only=True)
class PartQuery(MomentQuery):
    """
    Base of the queries about parts. Their centres follow from earlier answers, so they are given when it is asked.

    Args:
        num_parts (`int`): P, of each class.
        centres_sha256 (`str`, *optional*): Hash of centres and clip, when known: a stored answer is about these.
    """

    num_parts: int
    centres_sha256: str | None = None

    pairs = False

    @property
    def num_values(self) -> int:
        size = self.num_dimensions
        return self.num_parts * (1 + (size * (size + 1) // 2 if self.pairs else size))

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "num_parts": self.num_parts}

    @property
    def meaning(self) -> dict[str, Any]:
        return {**self.facts, "centres_sha256": self.centres_sha256}

    def rows(self, centres: "torch.Tensor", clip: float) -> PartRows:
        """Features for these centres `[classes, P, D]`."""
        return PartRows(self.spectrum, centres, clip, self.pairs)

    def stand_in(self) -> "Features":
        import torch

        centres = torch.randn(1, self.num_parts, self.num_dimensions, generator=torch.Generator().manual_seed(0))
        rows = self.rows(centres, 1.0)
        return lambda images, labels: rows(images, None)

    def parts_of(self, answer: "torch.Tensor", clip: float) -> "tuple[torch.Tensor, torch.Tensor]":
        """Splits an answer `[1, classes, P * d]` into counts `[classes, P]` and sums `[classes, P, d - 1]`, of
        differences or of products of two."""
        rows = answer[0].unflatten(1, (self.num_parts, -1)) * math.hypot(1, COUNT)
        return rows[..., 0] / COUNT, rows[..., 1:] * clip ** (2 if self.pairs else 1)


@dataclass(frozen=True, kw_only=True)
class PartMeans(PartQuery):
    """
    The number of images of each part, and the sum of their differences to its centre: one round of k-means.

    Args:
        number (`int`): Place of the round, from 1 on.
    """

    number: int

    @property
    def name(self) -> str:
        return f"part_means_{self.number}"

    @property
    def title(self) -> str:
        return f"means of parts, round {self.number}"


@dataclass(frozen=True, kw_only=True)
class PartCovariances(PartQuery):
    """The number of images of each part, and the sum of products of their differences to its centre."""

    name = "covariances"
    title = "covariances"
    pairs = True


@dataclass(frozen=True, kw_only=True)
class GreyLevels(Query):
    """
    How many pixels of each channel have which value, on average over the images of a class.

    A row is the histogram of one image, divided by its pixels and the root of its channels: the sensitivity is 1.

    Args:
        num_levels (`int`): Number of equal intervals of values, from 2 to 256.
    """

    name = "grey_levels"
    title = "grey levels"
    by_channel = True

    num_levels: int = 32

    @property
    def num_values(self) -> int:
        return self.num_levels

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_levels": self.num_levels}

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        import torch

        # Whole numbers, so that the bounds of levels are exact.
        values = (images * 255).round().long().clamp(0, 255) * self.num_levels // 256
        values = values.flatten(2)  # [b, C, H W]
        counts = torch.zeros(*values.shape[:2], self.num_levels, device=images.device)
        counts.scatter_add_(2, values, torch.ones(values.shape, device=images.device))
        return counts.flatten(1) / (values.shape[2] * math.sqrt(values.shape[1]))

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns the shares of values up to the end of each level, `[classes, C, num_levels]`, rising to 1."""
        import numpy as np
        import torch
        from sklearn.isotonic import isotonic_regression

        sums = answer[0].unflatten(1, (-1, self.num_levels)).cumsum(2).double().numpy()
        rising = np.apply_along_axis(isotonic_regression, 2, sums).clip(min=0)
        return torch.from_numpy(rising / np.maximum(rising[..., -1:], 1e-9)).float()
