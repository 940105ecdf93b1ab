# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Frequency features: the noisy mean of random Fourier features per class (FETA-Pro Equations 5 and 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .mean_features import Untrained
from .query import Query


if TYPE_CHECKING:
    import torch


class RandomFourierFeatures:
    """`phi(x) = [cos(w_1 x), ..., sin(w_1 x), ...] / sqrt(D / 2)`, of L2 norm 1 for every x (Rahimi & Recht 2007).

    The frequencies `w ~ N(0, I / length_scale^2)` come from a public seed and do not depend on data.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_features (`int`): Number D of features, a multiple of twice the number of length scales.
        length_scale (`float` or sequence of `float`): Length scale of the Gaussian kernel that the features
            approximate, in units of pixel values in [0, 1]. Several scales get equally many features each; the kernel
            is the mean of theirs.
        seed (`int`): Public seed.
    """

    def __init__(
        self, image_shape: tuple[int, ...], num_features: int, length_scale: float | Sequence[float], seed: int
    ):
        import torch

        generator = torch.Generator().manual_seed(seed)
        pixels = torch.Size(image_shape).numel()
        self.num_features = num_features
        scale: float | torch.Tensor
        if isinstance(length_scale, Sequence):
            each = num_features // (2 * len(length_scale))
            scale = torch.tensor(length_scale).repeat_interleave(each)[:, None]
        else:
            scale = length_scale
        self.frequencies = torch.randn(num_features // 2, pixels, generator=generator) / scale

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]`."""
        import torch

        projection = images.flatten(1) @ self.frequencies.to(images.device).T
        return torch.cat([projection.cos(), projection.sin()], dim=1) / (self.num_features // 2) ** 0.5


@dataclass(frozen=True, kw_only=True)
class FrequencyFeatures(Query):
    """
    The noisy mean embedding: `(sum_i phi(x_i) (x) onehot(y_i) + N(0, sigma^2)) / N`. The sum has sensitivity 1.

    Args:
        image_shape, num_features, length_scale, seed: See `RandomFourierFeatures`.
    """

    name = "frequency_features"
    title = "frequency features"

    image_shape: tuple[int, ...]
    num_features: int
    length_scale: float
    seed: int

    @property
    def clip_norm(self) -> float:
        return 1.0

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_features": self.num_features}

    @property
    def meaning(self) -> dict[str, Any]:
        return {**self.facts, "length_scale": self.length_scale, "seed": self.seed}

    @property
    def num_values(self) -> int:
        return self.num_features

    @cached_property
    def embedding(self) -> RandomFourierFeatures:
        """phi."""
        return RandomFourierFeatures(self.image_shape, **self.meaning)

    def normaliser(self, num_units: int, num_classes: int) -> int:
        return num_units

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return self.embedding(images)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns the mean embedding `[classes, D]`, float32. Each class keeps its weight n_c / N."""
        return answer[0] / num_units


@dataclass(frozen=True)
class FourierMixture(Untrained):
    """
    Random Fourier features of several length scales, `m^-1/2 [phi_1, ..., phi_m]`: DP-Kernel (Jiang et al. 2023) with
    a finite kernel. Noise N(0, sigma^2 I) on their mean is the Gaussian process of that kernel and of its gradients.

    Args:
        image_shape, num_features, seed: See `RandomFourierFeatures`.
        length_scales (`tuple[float, ...]`): Length scale of each kernel.
    """

    image_shape: tuple[int, ...]
    num_features: int
    length_scales: tuple[float, ...]
    seed: int

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_features": self.num_features, "length_scales": list(self.length_scales), "seed": self.seed}

    @cached_property
    def _fourier(self) -> RandomFourierFeatures:
        return RandomFourierFeatures(self.image_shape, self.num_features, self.length_scales, self.seed)

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1."""
        return self._fourier(images)
