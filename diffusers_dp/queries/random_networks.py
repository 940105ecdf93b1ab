# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mean features of small convolutional networks with random weights, per class. Two sets of images that have the same
ones teach a classifier similar things (distribution matching, Zhao & Bilen 2023, Section 3).

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .mean_features import unit
from .moments import COUNT
from .query import Query


if TYPE_CHECKING:
    import torch


BLOCKS = 3  # of a network, each of which halves the side
CONTRAST = 4.0  # images in [0, 1] less 1/2 are multiplied by it
BIAS = 0.1  # standard deviation


@dataclass(frozen=True)
class RandomNetworkFeatures:
    """
    The last feature maps of some networks of three blocks: a convolution of 3x3, ReLU, and averages of 2x2. Each
    network's row is scaled to the same norm, and together they have norm 1.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W), of at least 8x8 pixels.
        num_networks (`int`): Networks.
        width (`int`): Channels of each block.
        seed (`int`): Public seed of the weights.
    """

    image_shape: tuple[int, ...]
    num_networks: int
    width: int
    seed: int

    @property
    def num_features(self) -> int:
        """Of all networks."""
        _, height, width = self.image_shape
        return self.num_networks * self.width * (height // 2**BLOCKS) * (width // 2**BLOCKS)

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_networks": self.num_networks, "width": self.width}

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to rows `[b, D]` of norm 1, network by network."""
        import torch

        rows = [self.of_network(number, images) for number in range(self.num_networks)]
        return torch.cat(rows, 1) / math.sqrt(self.num_networks)

    def of_network(self, number: int, images: "torch.Tensor") -> "torch.Tensor":
        """Rows `[b, D / num_networks]` of norm 1 of one network."""
        import torch.nn.functional as F

        found = (images - 0.5) * CONTRAST
        for weight, bias in self._weights[number]:
            found = F.avg_pool2d(F.relu(F.conv2d(found, weight.to(found), bias.to(found), padding=1)), 2)
        return unit(found.flatten(1))

    @cached_property
    def _weights(self) -> "list[list[tuple[torch.Tensor, torch.Tensor]]]":
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        channels = [self.image_shape[0], *[self.width] * BLOCKS]

        def layer(inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
            weight = torch.randn(outputs, inputs, 3, 3, generator=generator) * math.sqrt(2 / (9 * inputs))
            return weight, BIAS * torch.randn(outputs, generator=generator)

        return [
            [layer(inputs, outputs) for inputs, outputs in zip(channels[:-1], channels[1:], strict=True)]
            for _ in range(self.num_networks)
        ]


@dataclass(frozen=True, kw_only=True)
class NetworkMeans(Query):
    """
    The number of images of each class, and the sum of their features.

    Args:
        feature_map (`RandomNetworkFeatures`): Features of norm 1.
    """

    name = "network_means"
    title = "mean features of random networks"

    feature_map: RandomNetworkFeatures

    @property
    def num_values(self) -> int:
        return 1 + self.feature_map.num_features

    @property
    def facts(self) -> dict[str, Any]:
        return self.feature_map.facts

    @property
    def meaning(self) -> dict[str, Any]:
        return self.facts | {"seed": self.feature_map.seed, "blocks": BLOCKS, "contrast": CONTRAST, "bias": BIAS}

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        import torch

        rows = self.feature_map(images)
        return torch.cat([torch.full_like(rows[:, :1], COUNT), rows], 1) / math.hypot(1, COUNT)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns sums `[classes, 1 + D]`: of images, and of features."""
        sums = answer[0] * math.hypot(1, COUNT)
        sums[:, 0] /= COUNT
        return sums
