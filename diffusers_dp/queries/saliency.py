# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which matrices the gradients of the images want to change (DP-SAPF, arXiv 2605.30312): one noisy sum."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .query import Query


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class MatrixSaliency(Query):
    """
    Each record's shares of its squared gradient norm, `|g_m|^2 / sum_m |g_m|^2` over matrices m, at the public
    weights; zero where that is not finite. Shares are not negative and have sum 1, so that their L1 norm is 1, and the
    L2 norm at most 1: the sensitivity. The features need the network, and are given to `ask`.

    Args:
        num_chosen (`int`): Matrices that are chosen.
        base_sha256 (`str`, *optional*): Of the network's files, when they are known: a stored answer is about these.
    """

    name: ClassVar[str] = "saliency"
    title: ClassVar[str] = "saliency of matrices"
    by_label: ClassVar[bool] = False

    num_chosen: int
    base_sha256: str | None = None

    @property
    def clip_norm(self) -> float:
        return 1.0

    @property
    def meaning(self) -> dict[str, Any]:
        return {"num_chosen": self.num_chosen, "base_sha256": self.base_sha256}

    def normaliser(self, num_units: int, num_classes: int) -> float:
        return float(num_units)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Numbers of the chosen matrices, `[num_chosen]`, those of the largest noisy sums, ascending."""
        sums = answer[0, 0]
        return sums.topk(min(self.num_chosen, len(sums))).indices.sort().values

    def stand_in(self) -> Any:
        """A record whose gradient is in one matrix alone, which reaches the bound; a black image has none."""

        def features(images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
            squares = images.flatten(1).square().sum(1, keepdim=True)
            return shares(squares * squares.new_tensor([[1.0] + [0.0] * 7]))

        return features


def shares(squares: "torch.Tensor") -> "torch.Tensor":
    """Squared norms `[b, m]` to shares `[b, m]`; rows that are not finite, or have none, become zero."""
    import torch

    total = squares.sum(1, keepdim=True)
    return torch.where(total.isfinite() & (total > 0), squares / total.clamp_min(1e-38), 0.0)
