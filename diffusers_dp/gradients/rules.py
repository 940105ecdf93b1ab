"""How each kind of layer forms its gradient per image, from its input and the gradient of its output.

A convolution has three exact ways, and the cheapest one by a rule that was measured (2 cores with AVX-512, oneDNN;
times as multiples of one ordinary call for all rows, which is the least there is to do):

- 1x1: a batched matrix product per draw, 0.7 to 0.8.
- One ordinary call for each image on its K rows: 1.0 to 1.2 where an image has at least about 3,000 output pixels in
  its rows (28x28 at K = 4), for then a call fills the cores; 1.4 to 14 below, where the price is that of the calls.
- A grouped call for 16 images at once: 0.8 to 1.6 (8x8 at K = 1: 2.4), for grouped convolutions run slower, but there
  are few.

What a call returns stays as it is: to gather the parts of a layer in one tensor took a quarter of a step where maps
are small (K = 1).

Unfolding (im2col) with a batched matrix product took 1.9 to 12 for kernels of 3x3: it moves 9 times the activations.
`benchmarks/dp_step.py` measures whole steps.
"""

import functools
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.grad import conv2d_weight


# Images per grouped convolution: oneDNN slows down with many small groups, and speeds up with a few.
IMAGES_PER_GROUPED_CALL = 16
# From so many output pixels in an image's rows on, a convolution takes one call for each image.
PIXELS_PER_OWN_CALL = 3000

# (parameter, its gradients per image, in as many parts as they were computed in: to put them together would cost a
# copy)
ParameterGradients = list[tuple[torch.Tensor, list[torch.Tensor]]]
# (layer, its input [rows, ...], gradient of its output [rows, ...], K) -> gradients, summed over the K rows of each
# image
Rule = Callable[..., ParameterGradients]


def _linear(layer: nn.Linear, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    images = len(x) // group_size
    x, grad = x.reshape(images, -1, layer.in_features), grad.reshape(images, -1, layer.out_features)
    gradients = [(layer.weight, [torch.bmm(grad.transpose(1, 2), x)])]
    if layer.bias is not None:
        gradients.append((layer.bias, [grad.sum(1, dtype=layer.bias.dtype)]))
    return gradients


def _conv2d(layer: nn.Conv2d, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":  # as the layer itself does: pad first
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0, 0)
    pointwise = layer.kernel_size == layer.stride == (1, 1) and padding == (0, 0) and layer.groups == 1
    if pointwise:
        weight = [_pointwise(x, grad, group_size).unflatten(2, (-1, 1, 1))]
    elif group_size * grad[0, 0].numel() >= PIXELS_PER_OWN_CALL:
        weight = _own_calls(layer, x, grad, group_size, padding)
    else:
        weight = _grouped_calls(layer, x, grad, group_size, padding)
    gradients = [(layer.weight, weight)]
    if layer.bias is not None:
        bias = grad.sum((2, 3), dtype=layer.bias.dtype)
        gradients.append((layer.bias, [bias.unflatten(0, (-1, group_size)).sum(1)]))
    return gradients


def _pointwise(x: torch.Tensor, grad: torch.Tensor, group_size: int) -> torch.Tensor:
    """A 1x1 convolution is a matrix product per row; the K draws are added up in place."""
    x, grad = (t.flatten(2).unflatten(0, (-1, group_size)) for t in (x, grad))
    if grad.dtype != torch.float32:  # added up inside one product, which rounds once, not K times to 8 bits
        x, grad = (t.transpose(1, 2).flatten(2) for t in (x, grad))
        return torch.bmm(grad, x.transpose(1, 2))
    total = torch.bmm(grad[:, 0], x[:, 0].transpose(1, 2))
    for draw in range(1, group_size):
        total.baddbmm_(grad[:, draw], x[:, draw].transpose(1, 2))
    return total


def _own_calls(
    layer: nn.Conv2d, x: torch.Tensor, grad: torch.Tensor, group_size: int, padding: tuple[int, ...]
) -> list[torch.Tensor]:
    """An ordinary call for each image, on its K rows."""
    return [
        conv2d_weight(
            rows, layer.weight.shape, row_grads,
            stride=layer.stride, padding=padding, dilation=layer.dilation, groups=layer.groups,
        ).unsqueeze(0)
        for rows, row_grads in zip(x.split(group_size), grad.split(group_size), strict=True)
    ]  # fmt: skip


def _grouped_calls(
    layer: nn.Conv2d, x: torch.Tensor, grad: torch.Tensor, group_size: int, padding: tuple[int, ...]
) -> list[torch.Tensor]:
    """One grouped convolution for several images at once: their activations become channels, `[K, images * channels,
    H, W]`, and `groups = images` keeps them apart, so the sum over the K rows is taken inside the call."""

    def side_by_side(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.unflatten(0, (-1, group_size)).transpose(0, 1)
        return rows.flatten(1, 2).contiguous()

    parts = []
    size = IMAGES_PER_GROUPED_CALL * group_size
    for rows, row_grads in zip(x.split(size), grad.split(size), strict=True):
        images = len(rows) // group_size
        weight = conv2d_weight(
            side_by_side(rows), (images * layer.out_channels, *layer.weight.shape[1:]), side_by_side(row_grads),
            stride=layer.stride, padding=padding, dilation=layer.dilation, groups=images * layer.groups,
        )  # fmt: skip
        parts.append(weight.unflatten(0, (images, layer.out_channels)))
    return parts


def _group_norm(layer: nn.GroupNorm, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    if not layer.affine:
        return []
    rows, channels = x.shape[:2]
    x, grad = x.to(layer.weight.dtype), grad.to(layer.weight.dtype)
    # In place: at this size every further tensor costs as much as the backward pass of the layer itself.
    per_row = F.group_norm(x, layer.num_groups, eps=layer.eps).mul_(grad).reshape(rows, channels, -1).sum(2)
    bias = grad.reshape(rows, channels, -1).sum(2)
    return [
        (layer.weight, [per_row.unflatten(0, (-1, group_size)).sum(1)]),
        (layer.bias, [bias.unflatten(0, (-1, group_size)).sum(1)]),
    ]


def _embedding(layer: nn.Embedding, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    images = len(x) // group_size
    gradient = grad.new_zeros(images, *layer.weight.shape)
    index = x.reshape(images, -1)
    grad = grad.reshape(images, index.shape[1], -1)
    if layer.padding_idx is not None:
        grad = grad * (index != layer.padding_idx).unsqueeze(2)
    gradient.scatter_add_(1, index.unsqueeze(2).expand_as(grad), grad)
    return [(layer.weight, [gradient])]


def _opacus(layer: nn.Module, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    """Opacus' grad sampler for the layer's type, a gradient per row, summed over the rows of an image."""
    frozen = [p for p in layer.parameters(recurse=False) if not p.requires_grad]
    for parameter in frozen:  # the samplers skip frozen parameters, and inside the context all are
        parameter.requires_grad_(True)
    try:
        # Contiguous: Opacus' unfolding of images reads other layouts wrongly, and nothing promises that the rest does
        # not.
        dtype = next(layer.parameters(recurse=False)).dtype
        per_row = _opacus_samplers()[type(layer)](layer, [x.to(dtype).contiguous()], grad.to(dtype).contiguous())
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    return [(parameter, [g.unflatten(0, (-1, group_size)).sum(1)]) for parameter, g in per_row.items()]


_RULES: dict[type, Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding,
}
# Layers of one input whose first dimension is the rows.
_LEFT_TO_OPACUS = (
    nn.Conv1d, nn.Conv3d, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


@functools.cache
def _opacus_samplers() -> dict[type, Callable]:
    from opacus.grad_sample import GradSampleModule  # only where it is needed: it takes seconds to import

    return GradSampleModule.GRAD_SAMPLERS


def rule_of(module: nn.Module, name: str = "") -> Rule:
    kind = type(module)
    if kind in _RULES:
        return _RULES[kind]
    if kind in _LEFT_TO_OPACUS and kind in _opacus_samplers():
        if name:  # said once, when the context is made
            warnings.warn(
                f"{kind.__name__} ('{name}') uses Opacus' grad sampler: one gradient per row in memory.", stacklevel=3
            )
        return _opacus
    raise TypeError(
        f"No per-example gradient rule for {kind.__name__} ('{name}'); supported layers: "
        + ", ".join(sorted(known.__name__ for known in (*_RULES, *_LEFT_TO_OPACUS)))
    )
