# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Gradients of consecutive images, in as many parts as they were computed in: to put them together costs a copy."""

from contextlib import AbstractContextManager, nullcontext

import torch


# Each [images of this part, *shape of the parameter]
Parts = list[torch.Tensor]


def norms(parts: Parts) -> torch.Tensor:
    """L2 norm of each image's gradient, `[images]`, float32, or float64 of such gradients."""
    types = [torch.promote_types(part.dtype, torch.float32) for part in parts]
    each = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=dtype) for part, dtype in zip(parts, types)]
    return torch.cat(each)


def weighted_sum(parts: Parts, weights: torch.Tensor) -> torch.Tensor:
    """`sum_i weights[i] * gradient_i`, shaped like the parameter.

    Args:
        weights (`torch.Tensor` of shape `[images]`): One for each image.
    """
    total = parts[0].new_zeros(parts[0][0].numel())
    for part, part_weights in zip(parts, weights.split([len(part) for part in parts]), strict=True):
        total.addmv_(part.flatten(1).t(), part_weights.to(part.dtype))
    return total.view(parts[0].shape[1:])


def without_autocast(device: torch.device) -> AbstractContextManager:
    """What is computed inside keeps the types of its inputs; not every type of device has autocast."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()
