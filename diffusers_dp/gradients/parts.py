# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Gradients of consecutive images, in as many parts as they were computed in: to put them together costs a copy."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


# Each [images of this part, *shape of the parameter]
Parts = list[torch.Tensor]
_MODES: Any = tuple(getattr(torch.backends, name).matmul for name in ("cuda", "mkldnn"))
_LOCK, _FOUND = threading.Lock(), list[list[str]]()  # what each thread found that is inside
SUMMED_AT_ONCE = 64  # images whose terms are added up in float32: as many cost next to nothing to gather in float64


@contextmanager
def ieee_float32() -> Iterator[None]:
    """Products of matrices are those of IEEE float32 in here, whatever networks are allowed (`allow_tf32`,
    `torch.set_float32_matmul_precision`): TF32 keeps 10 bits and bfloat16 keeps 7, too few for a bound. PyTorch has
    one setting for all threads: the last one to leave brings back what the first one found."""
    with _LOCK:
        _FOUND.append([mode.fp32_precision for mode in _MODES])
        for mode in _MODES:
            mode.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _LOCK:
            found = _FOUND.pop()
            for mode, precision in zip(_MODES, () if _FOUND else found):
                mode.fp32_precision = "none"  # what is set for all backends holds, where that is what was found
                if mode.fp32_precision != precision:
                    mode.fp32_precision = precision


@ieee_float32()
def norms(parts: Parts) -> torch.Tensor:
    """L2 norm of each image's gradient, `[images]`, float32, or float64 of such gradients."""
    types = [torch.promote_types(part.dtype, torch.float32) for part in parts]
    each = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=dtype) for part, dtype in zip(parts, types)]
    return torch.cat(each)


@ieee_float32()
def weighted_sum(parts: Parts, weights: torch.Tensor, wide: bool = False) -> torch.Tensor:
    """`sum_i weights[i] * gradient_i`, shaped like the parameter, and of its type. Sums of `SUMMED_AT_ONCE` images are
    added up in float64: one record is rounded beside so many others, however many there are.

    Args:
        weights (`torch.Tensor` of shape `[images]`): One for each image.
        wide (`bool`, defaults to `False`): Whether the sum stays in float64.
    """
    few = [each for part in parts for each in part.flatten(1).split(SUMMED_AT_ONCE)]
    sums = [
        torch.mv(each.t(), some.to(each.dtype))
        for each, some in zip(few, weights.split([len(each) for each in few]), strict=True)
    ]
    total = sums[0]
    if wide or len(sums) > 1:
        total = widened(total)
        for each in sums[1:]:
            total += widened(each)
    return (total if wide else total.to(parts[0])).view(parts[0].shape[1:])


def widened(value: torch.Tensor) -> torch.Tensor:
    """In float64: beside a large sum in float32, what one record adds would be rounded by a part of its sensitivity.
    On the CPU where the device has no float64 (Apple's)."""
    return (value.cpu() if value.device.type == "mps" else value).double()


def without_autocast(device: torch.device) -> AbstractContextManager:
    """What is computed inside keeps the types of its inputs; not every type of device has autocast."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()
