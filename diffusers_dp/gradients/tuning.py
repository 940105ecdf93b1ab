# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The exact kernel for a layer's gradient: the one that was fastest here, on random numbers.

Like cuDNN's benchmark mode: each kind of layer, shape, K, type and device is timed once, when it is first met, and the
choice is kept as long as the process. No private number is looked at, and no generator but one of its own is drawn
from: what is chosen follows from shapes and from the machine.
"""

import math
import time

import numpy as np
import torch

from .kernels import KERNELS, Geometry, Kernel
from .parts import Parts, norms, weighted_sum


# For one shape, once each kernel has had a first call: the dozen shapes of a UNet's convolutions take about a second,
# all others next to nothing.
SECONDS = 0.04
ROUNDS = range(2, 7)  # fewer are no measure on a busy machine, and more than these tell nothing new
LONGEST_CALL = 0.04  # seconds; where an image takes so long, it does not matter how many share a call
HOPELESS = 2  # a kernel that took so many times the fastest is not timed again
TIMED_DEVICES = ("cpu", "cuda")  # others serve by default: it is not known here how to wait for them
_DRAWN = 2**16  # random numbers; a larger tensor holds them again and again

_enabled = True
_chosen: dict[tuple, Kernel] = {}


def tune(enabled: bool) -> None:
    """Whether kernels are timed from now on. Without, the first one of the table that fits serves."""
    global _enabled
    _enabled = enabled


def weight_gradient(kind: str, geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """The gradient of a layer's weight for each image, by the kernel that is fastest here.

    Args:
        kind (`str`): A key of `KERNELS`, which says what the shapes of `x` and `grad` are.
        x, grad (`torch.Tensor`): Input of the layer and gradient of its output; dimension 0 is the rows.
        group_size (`int`): K, consecutive rows of an image.
    """
    return chosen_kernel(kind, geometry, x, grad, group_size).gradient(geometry, x, grad, group_size)


def chosen_kernel(kind: str, geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Kernel:
    """The kernel that `weight_gradient` takes, with the same arguments; timed now where it was not before."""
    # The nearest power of two: units of uneven size have many.
    about = 2 ** round(math.log2(group_size))
    key = (kind, geometry, about, x.device, *(fact for t in (x, grad) for fact in (t.shape[1:], t.dtype, _layout(t))))
    kernel = _chosen.get(key) if _enabled else None
    if kernel is None:
        fitting = [kernel for kernel in KERNELS[kind] if kernel.fits(geometry, x, grad, group_size)]
        if not _enabled or len(fitting) == 1 or x.device.type not in TIMED_DEVICES:
            return fitting[0]
        kernel = _chosen[key] = _fastest(fitting, geometry, x, grad, about)
    return kernel


def _layout(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions in the order in which they lie in memory."""
    if tensor.is_contiguous():
        return tuple(range(1, tensor.dim()))
    strides = tensor.stride()
    return tuple(sorted(range(1, tensor.dim()), key=lambda dim: -strides[dim]))


def _fastest(
    kernels: list[Kernel], geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int
) -> Kernel:
    """By the shortest time for one image: a busy machine slows single calls down, and makes none quicker. All take
    turns. A first call also sets up what later ones reuse, so that it tells too little to give a kernel up.
    """
    generator = np.random.Generator(np.random.Philox(0))  # of its own: the public and the private stream stay put
    drawn = torch.from_numpy(generator.standard_normal((2, _DRAWN), dtype=np.float32)).to(x.device)
    times: dict[Kernel, float] = {}

    def call(kernel: Kernel) -> None:
        rows = kernel.images * group_size
        inputs = _filled(x, rows, drawn[0]), _filled(grad, rows, drawn[1])
        taken = _seconds(kernel, geometry, *inputs, group_size) / kernel.images
        times[kernel] = min(taken, times.get(kernel, math.inf))

    for kernel in sorted(kernels, key=lambda kernel: kernel.images):
        if kernel.images * min(times.values(), default=0.0) < LONGEST_CALL:
            call(kernel)
    end = time.perf_counter() + SECONDS
    for number in range(ROUNDS.stop):
        best = min(times.values())
        for kernel in [kernel for kernel, taken in times.items() if number == 0 or taken < HOPELESS * best]:
            if number < ROUNDS.start or time.perf_counter() < end:
                call(kernel)
    return min(times, key=lambda kernel: times[kernel])


def _filled(like: torch.Tensor, rows: int, drawn: torch.Tensor) -> torch.Tensor:
    """Random numbers in the place of a tensor, of its type and layout, with so many rows."""
    order = (0, *_layout(like))
    shape = [rows, *(like.shape[dim] for dim in order[1:])]
    numbers = drawn.to(like.dtype).repeat(-(-math.prod(shape) // _DRAWN))[: math.prod(shape)].view(shape)
    return numbers.permute([order.index(dim) for dim in range(like.dim())])


def _seconds(kernel: Kernel, geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> float:
    """Of one gradient, and of what is done with its parts."""
    weights = torch.ones(len(x) // group_size, device=x.device)
    start = _now(x.device)
    parts = kernel.gradient(geometry, x, grad, group_size)
    norms(parts)
    weighted_sum(parts, weights)
    return _now(x.device) - start


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # here alone, and never again for this shape
    return time.perf_counter()
