# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The exact kernels for a layer's gradient per image, in one table: `KERNELS`. All of a kind give the same numbers, to
rounding. Which one is fastest depends on the machine; `tuning.py` finds out.

Shapes: R = images x K rows, image-major. A kernel sums over the K rows of each image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.grad import conv2d_weight

from .parts import Parts


class Geometry(NamedTuple):
    """What a layer does, but for its weights.

    Attributes:
        weight (`tuple[int, ...]`): Shape of the weight; of a convolution `[out, in / groups, height, width]`.
        stride, padding, dilation (`tuple[int, int]`): Geometry of a convolution.
        groups (`int`): Groups of a convolution or of a group norm.
        eps (`float`): Epsilon of a group norm.
    """

    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    eps: float = 0.0

    @property
    def is_pointwise(self) -> bool:
        """Whether a convolution is a matrix product at each pixel."""
        return self.weight[2:] == self.stride == (1, 1) and self.padding == (0, 0) and self.groups == 1


@dataclass(frozen=True)
class Kernel:
    """Computes the gradient of a weight, image by image.

    Args:
        name (`str`): In a few words.
        gradient (`Callable`): Geometry, input, gradient of the output, K, to the gradient in parts.
        fits (`Callable`): Function of the same four arguments: whether the kernel is exact there.
        images (`int`): On how many it is timed: those of one call, where there are many calls.
    """

    name: str
    gradient: Callable[[Geometry, torch.Tensor, torch.Tensor, int], Parts]
    fits: Callable[[Geometry, torch.Tensor, torch.Tensor, int], bool] = lambda *layer: True
    images: int = 16


# Linear layers: x [R, T, in], grad [R, T, out], for T tokens.


def _tokens_in_one_product(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    x, grad = (rows.reshape(len(rows) // group_size, -1, rows.shape[2]) for rows in (x, grad))
    return [torch.bmm(grad.transpose(1, 2), x)]


def _tokens_image_by_image(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    x, grad = (rows.reshape(len(rows) // group_size, -1, rows.shape[2]) for rows in (x, grad))
    total = grad.new_empty(len(x), *geometry.weight)
    for image, (tokens, token_grads) in enumerate(zip(x, grad, strict=True)):
        torch.mm(token_grads.t(), tokens, out=total[image])
    return [total]


def _single_tokens(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """With one token and one row an image, no sum is left."""
    return [grad.transpose(1, 2) * x]


def _has_single_tokens(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> bool:
    return group_size == x.shape[1] == 1


# Convolutions: x [R, in, H, W], grad [R, out, H', W'].


def _own_calls(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """An ordinary call for each image, on its K rows."""
    return [
        conv2d_weight(
            rows, geometry.weight, row_grads,
            stride=geometry.stride, padding=geometry.padding, dilation=geometry.dilation, groups=geometry.groups,
        ).unsqueeze(0)
        for rows, row_grads in zip(x.split(group_size), grad.split(group_size), strict=True)
    ]  # fmt: skip


def _grouped_calls(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int, *, images: int) -> Parts:
    """One grouped convolution for several images at once: their activations become channels, `[K, images * channels,
    H, W]`, and `groups = images` keeps them apart, so the sum over the K rows is taken inside the call."""

    def side_by_side(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.unflatten(0, (-1, group_size)).transpose(0, 1)
        return rows.flatten(1, 2).contiguous()

    parts = []
    out_channels = geometry.weight[0]
    for rows, row_grads in zip(x.split(images * group_size), grad.split(images * group_size), strict=True):
        number = len(rows) // group_size
        weight = conv2d_weight(
            side_by_side(rows), (number * out_channels, *geometry.weight[1:]), side_by_side(row_grads),
            stride=geometry.stride, padding=geometry.padding, dilation=geometry.dilation,
            groups=number * geometry.groups,
        )  # fmt: skip
        parts.append(weight.unflatten(0, (number, out_channels)))
    return parts


def _grouped(images: int) -> Kernel:
    def gradient(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
        return _grouped_calls(geometry, x, grad, group_size, images=images)

    return Kernel(f"grouped calls of {images} images", gradient, images=images)


def _columns(geometry: Geometry, x: torch.Tensor) -> torch.Tensor:
    """What each output pixel read, `[R, in * height * width, output pixels]` (im2col)."""
    if geometry.is_pointwise:
        return x.flatten(2)
    return F.unfold(
        x, geometry.weight[2:], stride=geometry.stride, padding=geometry.padding, dilation=geometry.dilation
    )


def _columns_row_by_row(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """A batched product for each of the K draws, added up in place."""
    columns, grad = (rows.unflatten(0, (-1, group_size)) for rows in (_columns(geometry, x), grad.flatten(2)))
    total = torch.bmm(grad[:, 0], columns[:, 0].transpose(1, 2))
    for draw in range(1, group_size):
        total.baddbmm_(grad[:, draw], columns[:, draw].transpose(1, 2))
    return [total.view(-1, *geometry.weight)]


def _columns_in_one_product(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """The K rows of an image side by side: a narrow type is rounded once, not K times to 8 bits."""
    columns, grad = (
        rows.unflatten(0, (-1, group_size)).transpose(1, 2).flatten(2)
        for rows in (_columns(geometry, x), grad.flatten(2))
    )
    return [torch.bmm(grad, columns.transpose(1, 2)).view(-1, *geometry.weight)]


def _shifted(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """A batched product for each place in the kernel. On a padded image, whose pixels are counted line by line, what a
    place reads is the image from a later pixel on: no columns are copied. Zeros in the gradient keep lines, and the K
    rows of an image, apart."""
    _, _, height, width = geometry.weight
    (down, right), (below, beside) = geometry.dilation, geometry.padding
    x = F.pad(x, (beside, beside, below, below))
    grad = F.pad(grad, (0, x.shape[3] - grad.shape[3], 0, x.shape[2] - grad.shape[2]))
    line = x.shape[3]
    x, grad = (rows.unflatten(0, (-1, group_size)).transpose(1, 2).flatten(2) for rows in (x, grad))
    pixels = x.shape[2] - (height - 1) * down * line - (width - 1) * right
    weight = x.new_empty(height * width, len(x), *geometry.weight[:2])
    for row in range(height):
        for column in range(width):
            first = row * down * line + column * right
            read = x[:, :, first : first + pixels].transpose(1, 2)
            torch.bmm(grad[:, :, :pixels], read, out=weight[row * width + column])
    return [weight.permute(1, 2, 3, 0).unflatten(3, (height, width)).contiguous()]


def _adds_up_exactly(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> bool:
    return geometry.groups == 1 and (group_size == 1 or grad.dtype in (torch.float32, torch.float64))


def _has_columns(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> bool:
    return geometry.groups == 1


def _can_be_shifted(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> bool:
    return geometry.groups == 1 and geometry.stride == (1, 1)


# Group norm: x and grad [R, channels, ...] to weight and bias together, [images, 2, channels].


def _normalised(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    rows, channels = x.shape[:2]
    # In place: at this size every further tensor costs as much as the backward pass of the layer itself.
    weight = F.group_norm(x, geometry.groups, eps=geometry.eps).mul_(grad).reshape(rows, channels, -1).sum(2)
    return _summed_over_rows(weight, grad.reshape(rows, channels, -1).sum(2), group_size)


def _rows_as_groups(geometry: Geometry, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> Parts:
    """The layer's own backward kernel, which sums over pixels and rows, on one row that holds the channels of all."""
    rows, channels = x.shape[:2]
    pixels, groups = x[0, 0].numel(), rows * geometry.groups
    x, grad = x.reshape(1, rows * channels, pixels), grad.reshape(1, rows * channels, pixels)
    _, mean, rstd = torch.native_group_norm(x, None, None, 1, rows * channels, pixels, groups, geometry.eps)
    _, weight, bias = torch.ops.aten.native_group_norm_backward(
        grad, x, mean, rstd, x.new_ones(rows * channels), 1, rows * channels, pixels, groups, [False, True, True]
    )
    return _summed_over_rows(weight.view(rows, channels), bias.view(rows, channels), group_size)


def _summed_over_rows(weight: torch.Tensor, bias: torch.Tensor, group_size: int) -> Parts:
    return [torch.stack([weight, bias], dim=1).unflatten(0, (-1, group_size)).sum(1)]


LINEAR, POINTWISE, CONVOLUTION, GROUP_NORM = "linear", "pointwise convolution", "convolution", "group norm"

# By kind of layer. Of those that fit, the first one serves where nothing is timed.
KERNELS: dict[str, tuple[Kernel, ...]] = {
    LINEAR: (
        Kernel("one batched product", _tokens_in_one_product),
        Kernel("a product for each image", _tokens_image_by_image),
        Kernel("single tokens", _single_tokens, _has_single_tokens),
    ),
    POINTWISE: (
        Kernel("a batched product for each row", _columns_row_by_row, _adds_up_exactly),
        Kernel("one batched product", _columns_in_one_product),
        Kernel("a call for each image", _own_calls, images=2),
        _grouped(64),
    ),
    CONVOLUTION: (
        _grouped(16),
        _grouped(4),
        _grouped(64),
        Kernel("a call for each image", _own_calls, images=2),
        Kernel("im2col, one batched product", _columns_in_one_product, _has_columns, images=4),
        Kernel("a batched product for each place in the kernel", _shifted, _can_be_shifted, images=4),
    ),
    GROUP_NORM: (
        Kernel("rows as groups", _rows_as_groups),
        Kernel("normalised again", _normalised),
    ),
}
