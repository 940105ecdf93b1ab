# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Frequency features: the noisy mean of random Fourier features per class (FETA-Pro Equations 5 and 6)."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .mean_features import MeanFeatures, Untrained


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RandomFourierFeatures(Untrained):
    """`phi(x) = [cos(w_1 x), ..., sin(w_1 x), ...] / sqrt(D / 2)`, of L2 norm 1 for every x (Rahimi & Recht 2007).

    The frequencies `w ~ N(0, I / length_scale^2)` come from a public seed and do not depend on data. With several
    scales this is DP-Kernel (Jiang et al. 2023) with a finite kernel: noise N(0, sigma^2 I) on the mean of the
    features is the Gaussian process of that kernel and of its gradients.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_features (`int`): Number D of features, a multiple of twice the number of length scales.
        length_scale (`float` or tuple of `float`): Length scale of the Gaussian kernel that the features approximate,
            in units of pixel values in [0, 1]. Several scales get equally many features each; the kernel is the mean
            of theirs.
        seed (`int`): Public seed.
    """

    image_shape: tuple[int, ...]
    num_features: int
    length_scale: float | tuple[float, ...]
    seed: int

    @property
    def facts(self) -> dict[str, Any]:
        scale = self.length_scale
        scales = {"length_scales": list(scale)} if isinstance(scale, tuple) else {"length_scale": scale}
        return {"num_features": self.num_features, **scales, "seed": self.seed}

    @cached_property
    def frequencies(self) -> "torch.Tensor":
        """w, `[D / 2, C * H * W]`."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        pixels = torch.Size(self.image_shape).numel()
        scales = torch.tensor(self.length_scale).flatten()
        each = scales.repeat_interleave(self.num_features // 2 // len(scales))
        return torch.randn(self.num_features // 2, pixels, generator=generator) / each[:, None]

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]`."""
        import torch

        projection = images.flatten(1) @ self.frequencies.to(images.device).T
        return torch.cat([projection.cos(), projection.sin()], dim=1) / (self.num_features // 2) ** 0.5


@dataclass(frozen=True, kw_only=True)
class FrequencyFeatures(MeanFeatures):
    """The mean embedding of random Fourier features."""

    name = "frequency_features"
    title = "frequency features"
