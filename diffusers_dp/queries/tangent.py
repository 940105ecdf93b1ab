# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Neural tangent features: the gradient of an untrained network (DP-NTK, Yang et al. 2023).

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .mean_features import MeanFeatures, Untrained, unit
from .one_image import one_by_one


if TYPE_CHECKING:
    import torch

    from ..privacy.separate_records import Features


STAND_IN_WIDTH = 50  # of published networks, whose gradients have millions of values


@dataclass(frozen=True)
class TangentFeatures(Untrained):
    """
    `g / ||g||`, where `g` is the gradient of the output of `w_2 relu(layer_norm(W_1 x + b_1))` by its weights.

    The weights come from a public seed and never change. Several outputs would have equal gradients by their weights,
    so there is one. The derivative of a ReLU jumps, so images go through the network one by one.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        width (`int`): Width of the hidden layer.
        seed (`int`): Public seed.
    """

    image_shape: tuple[int, ...]
    width: int
    seed: int

    @property
    def num_features(self) -> int:
        return self.width * (math.prod(self.image_shape) + 2)

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_features": self.num_features, "width": self.width, "seed": self.seed}

    @cached_property
    def _weights(self) -> "tuple[torch.Tensor, ...]":
        import torch

        generator, pixels = torch.Generator().manual_seed(self.seed), math.prod(self.image_shape)
        first = torch.randn(self.width, pixels, generator=generator) / pixels**0.5
        return first, torch.zeros(self.width), torch.randn(self.width, generator=generator) / self.width**0.5

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1."""
        import torch
        import torch.nn.functional as F
        from torch.func import grad

        def output(weights: tuple[torch.Tensor, ...], image: torch.Tensor) -> torch.Tensor:
            first, bias, second = weights
            return second @ F.relu(F.layer_norm(first @ image + bias, (self.width,)))

        weights = tuple(weight.to(images.device) for weight in self._weights)

        def features(image: torch.Tensor) -> torch.Tensor:
            gradients = grad(output)(weights, image.flatten())
            return unit(torch.cat([gradient.flatten() for gradient in gradients])[None])

        return one_by_one(features, images)


@dataclass(frozen=True, kw_only=True)
class MeanTangents(MeanFeatures):
    """Mean of tangent features. A stand-in's network is narrow: how many values a gradient has changes nothing of what
    one image adds."""

    feature_map: TangentFeatures

    def stand_in(self) -> "Features":
        narrow = replace(self.feature_map, width=min(STAND_IN_WIDTH, self.feature_map.width))
        return replace(self, feature_map=narrow).features

    def timed(self) -> "Features":
        return self.features
