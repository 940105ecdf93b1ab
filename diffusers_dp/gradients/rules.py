# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How each kind of layer forms its gradient per image, from its input and the gradient of its output.

Linear layers, convolutions and group norms have several exact kernels, `kernels.py`, of which the fastest is taken,
`tuning.py`. What a kernel returns stays as it is: to gather the parts of a layer in one tensor took a quarter of a
step where maps are small (K = 1). `benchmarks/dp_step.py` measures whole steps.
"""

import functools
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .kernels import CONVOLUTION, GROUP_NORM, LINEAR, POINTWISE, Geometry
from .parts import Parts
from .tuning import weight_gradient


# (parameter, its gradients per image)
ParameterGradients = list[tuple[torch.Tensor, Parts]]
# (layer, its input [rows, ...], gradient of its output [rows, ...], K) -> gradients, summed over the K rows of each
# image
Rule = Callable[..., ParameterGradients]


def _linear(layer: nn.Linear, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    x, grad = x.reshape(len(x), -1, layer.in_features), grad.reshape(len(x), -1, layer.out_features)
    gradients = [(layer.weight, weight_gradient(LINEAR, Geometry(tuple(layer.weight.shape)), x, grad, group_size))]
    if layer.bias is not None:
        bias = grad.reshape(len(x) // group_size, -1, layer.out_features).sum(1, dtype=layer.bias.dtype)
        gradients.append((layer.bias, [bias]))
    return gradients


def _convolution(
    layer: nn.Conv1d | nn.Conv2d, x: torch.Tensor, grad: torch.Tensor, group_size: int
) -> ParameterGradients:
    """Of images `[rows, channels, height, width]`, or of lines, which are images of height 1."""
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":  # as the layer itself does: pad first
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0,) * len(layer.kernel_size)
    geometry = Geometry(tuple(layer.weight.shape), layer.stride, padding, layer.dilation, layer.groups)
    if isinstance(layer, nn.Conv1d):
        x, grad, geometry = x.unsqueeze(2), grad.unsqueeze(2), _of_height_one(geometry)
    parts = weight_gradient(POINTWISE if geometry.is_pointwise else CONVOLUTION, geometry, x, grad, group_size)
    gradients = [(layer.weight, [part.view(len(part), *layer.weight.shape) for part in parts])]
    if layer.bias is not None:
        bias = grad.sum((2, 3), dtype=layer.bias.dtype)
        gradients.append((layer.bias, [bias.unflatten(0, (-1, group_size)).sum(1)]))
    return gradients


def _of_height_one(line: Geometry) -> Geometry:
    weight = (*line.weight[:2], 1, *line.weight[2:])
    return Geometry(weight, (1, *line.stride), (0, *line.padding), (1, *line.dilation), line.groups)


def _group_norm(layer: nn.GroupNorm, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    x, grad = x.to(layer.weight.dtype), grad.to(layer.weight.dtype)
    geometry = Geometry(tuple(layer.weight.shape), groups=layer.num_groups, eps=layer.eps)
    (both,) = weight_gradient(GROUP_NORM, geometry, x, grad, group_size)
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
# Layers of one input whose first dimension is the rows.
_LEFT_TO_OPACUS = (nn.Conv3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@functools.cache
def _opacus_samplers() -> dict[type, Callable]:
    from opacus.grad_sample import GradSampleModule  # only where it is needed: it takes seconds to import

    return GradSampleModule.GRAD_SAMPLERS


def rule_of(module: nn.Module, name: str = "") -> Rule | None:
    """The rule of a layer's type, `None` where there is none.

    Args:
        name (`str`): Name of the layer in its model; with one, a log line says where Opacus' grad sampler serves.
    """
    kind = type(module)
    own = _RULES.get(kind) or _RULES_OF_DIFFUSERS.get(f"{kind.__module__}.{kind.__qualname__}")
    if own is None and kind in _LEFT_TO_OPACUS and kind in _opacus_samplers():
        if name:  # said once, when the context is made
            warnings.warn(
                f"{kind.__name__} ('{name}') uses Opacus' grad sampler: one gradient per row in memory.", stacklevel=4
            )
        return _opacus
    return own


def supported_layers() -> list[str]:
    """Names of the types that have a rule."""
    return sorted({kind.__name__ for kind in (*_RULES, *_LEFT_TO_OPACUS)})
