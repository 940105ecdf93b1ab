# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Random draws of a row's loss."""

import torch

from ..randomness.private_generator import PrivateGenerator


class Draws:
    """Draws random numbers for a row loss: in DP-SGD from the door's secret source, elsewhere from torch's seeded one.

    The number of draws depends only on the number of rows, never on their content.

    Args:
        generator (`PrivateGenerator`, *optional*): Secret source.
        device (`torch.device`): Device of the draws.
    """

    def __init__(self, generator: PrivateGenerator | None, device: torch.device):
        self.generator = generator
        self.device = device

    def normal(self, *shape: int) -> torch.Tensor:
        """Draws independent N(0, 1) numbers, float32."""
        if self.generator is None:
            return torch.randn(shape, device=self.device)
        return self.generator.normal(shape, 1.0, self.device)

    def uniform(self, size: int) -> torch.Tensor:
        """Draws independent numbers from [0, 1), `[size]`, float64, on the CPU."""
        if self.generator is None:
            return torch.rand(size).double()
        return torch.from_numpy(self.generator.uniform(size))

    def drop_labels(self, labels: torch.Tensor, probability: float, null_label: int) -> torch.Tensor:
        """Replaces each label by `null_label` with this probability."""
        dropped = self.uniform(len(labels)) < probability
        return labels.masked_fill(dropped.to(labels.device), null_label)
