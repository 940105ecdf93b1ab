# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How each kind of layer forms its gradient per image, from its input and the gradient of its output.

What a rule returns stays in parts: to gather the parts of a layer in one tensor took a quarter of a step where maps
are small (K = 1). Other exact ways (calls for each image, im2col, a product for each place in the kernel) were as
fast at best on a CPU and on a GPU; `benchmarks/dp_step.py` measures whole steps.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.grad import conv2d_weight

from .parts import Parts


# (parameter, its gradients per image)
ParameterGradients = list[tuple[torch.Tensor, Parts]]
# (layer, its input [rows, ...], gradient of its output [rows, ...], K) -> gradients, summed over the K rows of each
# image
Rule = Callable[..., ParameterGradients]
IMAGES_IN_A_CALL = 16  # of a convolution


def _linear(layer: nn.Linear, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    x, grad = (rows.reshape(len(rows) // group_size, -1, rows.shape[-1]) for rows in (x, grad))
    gradients = [(layer.weight, [torch.bmm(grad.transpose(1, 2), x)])]
    if layer.bias is not None:
        gradients.append((layer.bias, [grad.sum(1, dtype=layer.bias.dtype)]))
    return gradients


def _convolution(
    layer: nn.Conv1d | nn.Conv2d, x: torch.Tensor, grad: torch.Tensor, group_size: int
) -> ParameterGradients:
    """Of images `[rows, channels, height, width]`, or of lines, which are images of height 1."""
    shape, stride, padding, dilation = tuple(layer.weight.shape), layer.stride, layer.padding, layer.dilation
    if isinstance(padding, str) or layer.padding_mode != "zeros":  # as the layer itself does: pad first
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0,) * len(layer.kernel_size)
    if isinstance(layer, nn.Conv1d):
        x, grad, shape = x.unsqueeze(2), grad.unsqueeze(2), (*shape[:2], 1, *shape[2:])
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    if shape[2:] == stride == (1, 1) and padding == (0, 0) and layer.groups == 1:
        parts = [_pointwise(x, grad, group_size)]
    else:
        geometry = {"stride": stride, "padding": padding, "dilation": dilation}
        parts = _grouped_calls(x, grad, group_size, shape, layer.groups, **geometry)
    gradients = [(layer.weight, [part.view(len(part), *layer.weight.shape) for part in parts])]
    if layer.bias is not None:
        bias = grad.sum((2, 3), dtype=layer.bias.dtype)
        gradients.append((layer.bias, [bias.unflatten(0, (-1, group_size)).sum(1)]))
    return gradients


def _pointwise(x: torch.Tensor, grad: torch.Tensor, group_size: int) -> torch.Tensor:
    """A convolution that is a product of matrices at each pixel: a batched product for each of the K draws. Those of
    a narrow type stand side by side in one product: it is rounded once, not K times to 8 bits."""
    x, grad = (rows.flatten(2).unflatten(0, (-1, group_size)) for rows in (x, grad))
    if group_size > 1 and grad.dtype not in (torch.float32, torch.float64):
        x, grad = (draws.transpose(1, 2).flatten(2).unsqueeze(1) for draws in (x, grad))
    total = torch.bmm(grad[:, 0], x[:, 0].transpose(1, 2))
    for draw in range(1, x.shape[1]):
        total.baddbmm_(grad[:, draw], x[:, draw].transpose(1, 2))
    return total


def _grouped_calls(
    x: torch.Tensor, grad: torch.Tensor, group_size: int, shape: tuple[int, ...], groups: int,
    **geometry: tuple[int, ...],
) -> Parts:  # fmt: skip
    """One grouped convolution for several images at once: their activations become channels, `[K, images * channels,
    H, W]`, and `groups = images` keeps them apart, so the sum over the K rows is taken inside the call."""

    def side_by_side(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.unflatten(0, (-1, group_size)).transpose(0, 1)
        return rows.flatten(1, 2).contiguous()

    parts = []
    for rows, row_grads in zip(*(each.split(IMAGES_IN_A_CALL * group_size) for each in (x, grad)), strict=True):
        number = len(rows) // group_size
        weight = conv2d_weight(
            side_by_side(rows), (number * shape[0], *shape[1:]), side_by_side(row_grads), groups=number * groups,
            **geometry,
        )  # fmt: skip
        parts.append(weight.unflatten(0, (number, shape[0])))
    return parts


def _group_norm(layer: nn.GroupNorm, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    """The layer's own backward kernel, which sums over pixels and rows, on one row that holds the channels of all."""
    rows, channels = x.shape[:2]
    pixels, groups = x[0, 0].numel(), rows * layer.num_groups
    # Contiguous because one row with channels last is reshaped to a view, which the kernel refuses.
    x, grad = (each.to(layer.weight.dtype).reshape(1, rows * channels, pixels).contiguous() for each in (x, grad))
    _, mean, rstd = torch.native_group_norm(x, None, None, 1, rows * channels, pixels, groups, layer.eps)
    _, weight, bias = torch.ops.aten.native_group_norm_backward(
        grad, x, mean, rstd, x.new_ones(rows * channels), 1, rows * channels, pixels, groups, [False, True, True]
    )
    both = torch.stack([each.view(rows, channels) for each in (weight, bias)], dim=1)
    both = both.unflatten(0, (-1, group_size)).sum(1)
    return [(layer.weight, [both[:, 0]]), (layer.bias, [both[:, 1]])]


def _layer_norm(layer: nn.LayerNorm, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    x, grad = x.to(layer.weight.dtype), grad.to(layer.weight.dtype)
    return _scaled(layer, F.layer_norm(x, layer.normalized_shape, eps=layer.eps), grad, group_size)


def _rms_norm(layer: nn.RMSNorm, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    """Torch's, and Diffusers' own, which may have a bias and always normalises the last dimension."""
    x, grad = x.to(layer.weight.dtype), grad.to(layer.weight.dtype)
    shape = getattr(layer, "normalized_shape", x.shape[-1:])
    return _scaled(layer, F.rms_norm(x, shape, eps=layer.eps), grad, group_size)


def _scaled(
    layer: nn.LayerNorm | nn.RMSNorm, normalised: torch.Tensor, grad: torch.Tensor, group_size: int
) -> ParameterGradients:
    """Of a weight, and a bias, of the last dimensions' shape. Overwrites `normalised`."""

    def summed(rows: torch.Tensor, shape: torch.Size) -> Parts:
        return [rows.reshape(len(rows) // group_size, -1, *shape).sum(1)]

    gradients: ParameterGradients = [(layer.weight, summed(normalised.mul_(grad), layer.weight.shape))]
    bias = getattr(layer, "bias", None)
    if bias is not None:
        gradients.append((bias, summed(grad, bias.shape)))
    return gradients


def _embedding(layer: nn.Embedding, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    images = len(x) // group_size
    gradient = grad.new_zeros(images, *layer.weight.shape)
    index = x.reshape(images, -1)
    grad = grad.reshape(images, index.shape[1], -1)
    if layer.padding_idx is not None:
        grad = grad * (index != layer.padding_idx).unsqueeze(2)
    gradient.scatter_add_(1, index.unsqueeze(2).expand_as(grad), grad)
    return [(layer.weight, [gradient])]


_RULES: dict[type, Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.Embedding: _embedding,
}
# By name: where a model has one, its module is loaded, and where none has, that would take seconds.
_RULES_OF_DIFFUSERS: dict[str, Rule] = {
    "diffusers.models.normalization.RMSNorm": _rms_norm,
    "diffusers.models.normalization.FP32LayerNorm": _layer_norm,
}


def rule_of(module: nn.Module) -> Rule | None:
    """The rule of a layer's type, `None` where there is none."""
    kind = type(module)
    return _RULES.get(kind) or _RULES_OF_DIFFUSERS.get(f"{kind.__module__}.{kind.__qualname__}")


def supported_layers() -> list[str]:
    """Names of the types that have a rule."""
    return sorted(kind.__name__ for kind in _RULES)
