# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Vectors of whole numbers, whose sums are exact in any order: what `--noise exact` adds up.

The vector of each unit is scaled so that its clip norm C is `STEPS`, clipped a little below that, and rounded, before
it is added to any other. A rounded vector counts only if its integer norm, computed exactly, is at most `STEPS`. So
the sensitivity is C, whatever was rounded on the way.
"""

import math

import torch

from ..errors import UsageError
from ..mechanisms.mechanism import STEPS
from ..randomness.rounded_gaussian import MOST_STEPS
from .parts import Parts


#: What float32 may get wrong in the norm of a gradient, with room: the clip norm is lower by this.
SLACK = 2.0**-12
IN_CACHE = 2**18  # numbers that are rounded while they are in the processor's cache
#: Rows of a batch, or a multiple of it: fewer are computed by other kernels. The small UNet of the recipes has other
#: bits in batches of 16 and 32, and the same ones in those of 64, 128 and 256. A power of two.
ROWS = 64


def clip_steps(dimension: int, parts: int = 1) -> float:
    """
    The norm to which a vector is clipped, in steps: the rounding adds sqrt(d)/2 at most.

    Args:
        dimension (`int`): d.
        parts (`int`, defaults to 1): The most vectors that share one sensitivity, as the images of a unit do.

    Raises:
        UsageError: The rounding takes more than a part in sixteen.
    """
    most = STEPS / parts
    rounding = math.sqrt(dimension) / 2
    if rounding > most / 16:
        raise UsageError(
            f"Vectors of {dimension} numbers, {parts} to a unit, are too long for a grid of {STEPS} steps: give "
            "--noise float."
        )
    return most * (1 - SLACK) - rounding


def refuse_too_much_noise(noise_multiplier: float, steps: int = STEPS) -> None:
    """Raises `UsageError` if noise of that many steps, times the multiplier, is more than can be rounded exactly."""
    if noise_multiplier * steps > MOST_STEPS:
        raise UsageError(
            f"--noise exact has noise multipliers of at most {MOST_STEPS / steps:g} here, not {noise_multiplier:g}: "
            "give --noise float, or ask for less noise."
        )


def rounded_in_place(parts: Parts, factors: torch.Tensor) -> torch.Tensor:
    """
    Multiplies the vector of each image by its factor and rounds it to whole numbers.

    Returns:
        `torch.Tensor` of float64, shape `[images]`: Squared L2 norms of the rounded vectors, exact as far as they lie
        below 2^52: so are the sums of their squares, in any order, and a correctly rounded root tells its square.
    """
    norms = []
    for part, own in zip(parts, factors.split([len(part) for part in parts]), strict=True):
        rows = part.view(len(part), -1)  # of a part that is not contiguous, no view
        few = max(1, IN_CACHE // max(1, rows.shape[1]))
        for chunk, factor in zip(rows.split(few), own.split(few), strict=True):
            chunk.mul_(factor[:, None]).round_()
            norms.append(torch.linalg.vector_norm(chunk, dim=1, dtype=torch.float64))
    return torch.cat(norms).square().round()


def fits(squared_norms: torch.Tensor) -> torch.Tensor:
    """Which vectors of whole numbers have an L2 norm of at most `STEPS`."""
    return squared_norms <= float(STEPS) ** 2


def on_grid(
    rows: torch.Tensor, clip_norm: float, counted: torch.Tensor, parts: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Clips the vectors of a query and rounds them to whole numbers.

    Args:
        rows (`torch.Tensor` of shape `[b, d]`): The vectors. One that is not finite counts as zero.
        clip_norm (`float`): C.
        counted (`torch.Tensor` of bool, shape `[b]`): The others count as zero.
        parts (`torch.Tensor` of shape `[b]`, *optional*): How many vectors the unit of each one has, which share C.

    Returns:
        `torch.Tensor` of float64, shape `[b, d]`. All vectors of a unit together are no longer than `STEPS`.
    """
    rounded = (rows.cpu() if rows.device.type == "mps" else rows).to(
        torch.float64, copy=True, memory_format=torch.contiguous_format
    )
    most = torch.ones(len(rows)) if parts is None else parts
    most, squared = most.to(rounded), rounded.new_empty(len(rows))
    # Chunks of one shape in every batch: a norm's last bits may follow from the rows that are computed with it.
    in_cache = max(1, min(ROWS, IN_CACHE // max(1, rows.shape[1])))
    few = math.gcd(2 ** (in_cache.bit_length() - 1), len(rows))
    for vectors, own, result in zip(*(each.split(few) for each in (rounded, most, squared)), strict=True):
        limits = STEPS / own * (1 - SLACK) - math.sqrt(rows.shape[1]) / 2
        lengths = torch.linalg.vector_norm(vectors, dim=1) * (STEPS / clip_norm / own)
        vectors.mul_((STEPS / clip_norm / own * limits / torch.maximum(lengths, limits))[:, None]).round_()
        result.copy_(torch.linalg.vector_norm(vectors, dim=1).square().round())
    rounded[~(fits(squared * most.square()) & counted.to(rounded.device))] = 0.0
    return rounded
