# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The saliency of a network's matrices by the images' gradients (DP-SAPF, arXiv 2605.30312): one noisy sum."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .query import Query


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class MatrixSaliency(Query):
    """
    Each matrix's share of a record's squared gradient norm, `|g_m|^2 / sum_m |g_m|^2` over matrices m, at the public
    weights; zero if not finite. Shares are non-negative and sum to 1. Their L1 norm is 1 and their L2 norm at most 1,
    which is the sensitivity. The features need the network and are passed to `ask`.

    Args:
        num_chosen (`int`): Number of matrices to choose.
        base_sha256 (`str`, *optional*): Hash of the network's files; part of the meaning of a stored answer.
    """

    name: ClassVar[str] = "saliency"
    title: ClassVar[str] = "saliency of matrices"
    by_label: ClassVar[bool] = False

    num_chosen: int
    base_sha256: str | None = None

    @property
    def meaning(self) -> dict[str, Any]:
        return {"num_chosen": self.num_chosen, "base_sha256": self.base_sha256}

    def normaliser(self, num_units: int, num_classes: int) -> float:
        return float(num_units)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns the indices of the matrices with the largest noisy sums, `[num_chosen]`, ascending."""
        sums = answer[0, 0]
        return sums.topk(min(self.num_chosen, len(sums))).indices.sort().values

    def stand_in(self) -> Any:
        """Returns features of records whose gradient is in one matrix, which reach the bound; black images have
        none."""

        def features(images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
            squares = images.flatten(1).square().sum(1, keepdim=True)
            return shares(squares * squares.new_tensor([[1.0] + [0.0] * 7]))

        return features


def shares(squares: "torch.Tensor") -> "torch.Tensor":
    """Converts squared norms `[b, m]` to shares `[b, m]`; rows that are not finite or sum to 0 become zero."""
    import torch

    total = squares.sum(1, keepdim=True)
    return torch.where(total.isfinite() & (total > 0), squares / total.clamp_min(1e-38), 0.0)
