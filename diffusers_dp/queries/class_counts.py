# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The noisy number of images of each class, for methods whose answers keep the weight n_c / N of a class.

Nothing here loads torch before it is used.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .query import Query


if TYPE_CHECKING:
    import torch

ENOUGH = 3  # standard deviations of the noise: a smaller count is taken to be so large


@dataclass(frozen=True, kw_only=True)
class ClassCounts(Query):
    """`n_c + N(0, sigma^2)` of each class. An image is of one class, so the sensitivity is 1."""

    name = "class_counts"
    title = "class counts"
    num_values = 1

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return images.new_ones(len(images), 1)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns `N / (K n_c)` of each of K classes, `[classes, 1]`: what an answer with the weight n_c / N is
        multiplied by, so that all classes weigh 1 / K."""
        counts = answer[0].clamp_min(max(1.0, ENOUGH * noise_multiplier))
        return num_units / len(counts) / counts
