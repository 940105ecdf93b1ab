# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether features keep records apart, which the sensitivity of a noisy sum rests on: tried on records of noise,
before anything is asked."""

import math
from collections.abc import Callable, Sequence

import torch

from ..errors import UsageError


#: Images `[b, C, H, W]` in [0, 1] and labels, int64 `[b]` or `None`, to features `[b, d]`, each row of its own record.
Features = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]

NUM_TRIED, NUM_MATES = 6, 3
ROUNDING = 3e-3  # of a row's norm: batches of other sizes are computed in another order, and TF32 keeps ten bits
FLIPPED = 1  # row that may differ: rounding can flip the largest of two numbers that are nearly equal
NEGLIGIBLE = 1e-3  # of the clip norm: a row that is shorter is compared as if it had this length


def features_of_zeros(
    features: Features,
    image_shape: Sequence[int],
    num_classes: int | None,
    *,
    device: torch.device | str,
    clip_norm: float,
    name: str,
) -> torch.Tensor:
    """
    The features of one black image, after a trial: records of public noise get the same rows in another order, beside
    other records, and alone.

    A mixture that shows on none of them, or is smaller than rounding, is not found.

    Args:
        features (`Features`): To try.
        image_shape (`Sequence[int]`), num_classes (`int`, *optional*): Of the records; `None`: no labels.
        device (`torch.device`): Where they are computed.
        clip_norm (`float`): Of the query: what is small against it is rounding.
        name (`str`): Of the query, for the message.

    Returns:
        `torch.Tensor` of shape `[1, d]`.

    Raises:
        UsageError: A row changes with the other records of its batch, or from call to call, or there is not one row a
            record.
    """
    number = NUM_TRIED + NUM_MATES
    images = _scrambled(number * math.prod(image_shape), 256).view(number, *image_shape).float().div(255).to(device)
    labels = None if num_classes is None else _scrambled(number, num_classes).to(device)

    def rows(which: torch.Tensor) -> torch.Tensor:
        which = which.to(device)
        found = features(images[which], None if labels is None else labels[which])
        if found.dim() != 2 or len(found) != len(which):
            raise UsageError(
                f"The features of {name!r} have the shape {tuple(found.shape)} for {len(which)} images; return one "
                "row of numbers for each image."
            )
        found = found.detach().double()
        return torch.where(found.isfinite().all(1, keepdim=True), found, 0.0)  # as the door does

    tried = torch.arange(NUM_TRIED)
    together = rows(tried)
    limit = ROUNDING * together.norm(dim=1).clamp_min(NEGLIGIBLE * clip_norm)
    trials = (
        lambda: rows(torch.arange(number).flip(0)).flip(0)[:NUM_TRIED],
        lambda: torch.cat([rows(one) for one in tried.split(1)]),
    )
    for again in trials:
        if ((again() - together).norm(dim=1) > limit).sum() > FLIPPED:
            raise UsageError(
                f"The features of {name!r} are no function of one image alone: they change with the other images of a "
                "batch, or are random. Put its networks into evaluation mode, and compute each row from its own image."
            )
    zeros = None if labels is None else torch.zeros(1, dtype=torch.long, device=device)
    return features(torch.zeros(1, *image_shape, device=device), zeros)


def _scrambled(count: int, below: int) -> torch.Tensor:
    """Numbers that look random, without a generator, for the door draws from its private source alone: two rounds of a
    multiplicative hash on 32 bits."""
    word = torch.arange(1, count + 1)
    for _ in range(2):
        word = word * 2654435761 & 0xFFFFFFFF
        word ^= word >> 15
    return word % below
