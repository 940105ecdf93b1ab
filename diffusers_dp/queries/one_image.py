# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Choices that follow from one image alone, to the last bit. A vote that rounding flips moves a sum by more than the
sensitivity of its image.

Nothing here loads torch before it is used.
"""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch

    from .mean_features import Embedding


def one_by_one(embed: "Embedding", images: "torch.Tensor") -> "torch.Tensor":
    """
    Computes a function of each image in a batch of one: products in batches of other sizes, and at other places of a
    batch, are rounded otherwise.

    Args:
        embed (`Embedding`): Images `[b, C, H, W]` to `[b, D]`.
        images (`torch.Tensor` of shape `[b, C, H, W]`): Each is copied, because rounding may follow from where an
            image starts in memory, too.

    Returns:
        `torch.Tensor` of shape `[b, D]`.
    """
    import torch

    return torch.cat([embed(image.clone(memory_format=torch.contiguous_format)) for image in images.split(1)])


def largest(scores: "torch.Tensor", number: int) -> "torch.Tensor":
    """
    Marks the largest scores of each row; of equal ones the first. A score that is no number is never marked.

    Args:
        scores (`torch.Tensor` of shape `[b, n]`): Each row of its own image.
        number (`int`): At most n.

    Returns:
        `torch.Tensor` of bool, shape `[b, n]`: `number` places of each row.
    """
    best = scores.topk(min(number + 1, scores.shape[1])).values  # one more shows a tie
    least = best[:, number - 1 : number]
    marked, tied = scores >= least, (best[:, number:] == least).any(1)
    if tied.any():
        rows, least = scores[tied], least[tied]
        above, equal = rows > least, rows == least
        marked[tied] = above | (equal & (equal.cumsum(1) <= number - above.sum(1, keepdim=True)))
    return marked
