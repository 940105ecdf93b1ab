"""Per-example gradients, one per image and never one per draw.

With noise multiplicity K an image takes part in a batch as K rows, image-major: rows `i*K ... i*K + K-1` are the K draws of
image `i`. The mean of their gradients is one vector per image, and it is this vector that DP-SGD clips. Frameworks that form
a gradient per row first need B*K copies of the model; here every layer forms its gradient *per image* right away, while the
ordinary backward pass runs. The parameters are frozen in the meantime, so no gradient is computed twice.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.grad import conv2d_weight


# Images per grouped convolution: oneDNN slows down with many small groups, and speeds up with a few.
IMAGES_PER_GROUPED_CALL = 16


class per_example_gradients:
    """Context manager that collects the gradient of a summed loss per image.

    Forward **and** backward run inside. The loss is the **sum** over all `B * group_size` rows of independent per-row losses;
    the gradient of image `i` is the mean over its `group_size` rows.

    ```py
    with per_example_gradients(model, group_size=K) as g:
        row_losses(model(rows)).sum().backward()
    norms = g.squared_norms().sqrt()           # [B]
    total = g.weighted_sum(clip_factors)       # dict of tensors shaped like the parameters
    ```

    The model is left as it was found: hooks are removed, `requires_grad` is restored, `.grad` is never written. Parameters
    that did not require a gradient are skipped. First-order losses only: when a layer's hook fires twice for one forward pass, or
    under `create_graph=True`, the collected gradient would be silently wrong, so this raises.

    Args:
        model (`nn.Module`): Built from `Linear`, `Conv2d`, `GroupNorm` and `Embedding` where it has trainable parameters.
        group_size (`int`, defaults to 1): K, rows per image.

    Raises:
        TypeError: A trainable parameter belongs to a layer without a rule, or a layer mixes examples (BatchNorm in training mode).
        ValueError: `group_size` < 1, or a number of rows that is no multiple of it.
        RuntimeError: The loss is not first-order, or the input of a layer was changed in place afterwards.
    """

    def __init__(self, model: nn.Module, group_size: int = 1):
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {group_size}.")
        self.model = model
        self.group_size = group_size
        self._names: dict[torch.Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        for module_name, module in model.named_modules():
            if _mixes_examples(module):
                raise TypeError(
                    f"{type(module).__name__} ('{module_name}') computes statistics over a batch, so that one image would move "
                    "every gradient; use GroupNorm, or put the layer into evaluation mode."
                )
            if any(p.requires_grad for p in module.parameters(recurse=False)) and type(module) not in _RULES:
                raise TypeError(
                    f"No per-example gradient rule for {type(module).__name__} ('{module_name}'); supported layers: "
                    + ", ".join(sorted(kind.__name__ for kind in _RULES))
                )
        self._gradients: dict[str, torch.Tensor] = {}
        self._handles: list = []

    def __enter__(self) -> "per_example_gradients":
        for module in self.model.modules():
            if type(module) in _RULES and any(p in self._names for p in module.parameters(recurse=False)):
                self._handles.append(module.register_forward_hook(self._watch))
        for parameter in self._names:
            parameter.requires_grad_(False)
        return self

    def __exit__(self, *exception) -> None:
        for handle in self._handles:
            handle.remove()
        for parameter in self._names:
            parameter.requires_grad_(True)

    def _watch(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        activation = inputs[0].detach()
        if len(activation) % self.group_size != 0:
            raise ValueError(f"{len(activation)} rows cannot be split into images of {self.group_size} rows each.")
        fired, version = False, activation._version

        def collect(grad_output: torch.Tensor) -> None:
            nonlocal fired
            if fired or torch.is_grad_enabled():
                raise RuntimeError(
                    "per_example_gradients needs a first-order loss: this one differentiates a gradient."
                )
            if activation._version != version:
                raise RuntimeError(f"The input of a {type(module).__name__} was changed in place after it was used.")
            fired = True
            grad_output = grad_output / self.group_size  # the mean over the K rows of an image
            for parameter, gradient in _RULES[type(module)](module, activation, grad_output, self.group_size):
                if parameter in self._names:
                    name = self._names[parameter]
                    # A layer used twice, or a shared parameter: its parts add up.
                    earlier = self._gradients.get(name)
                    self._gradients[name] = gradient if earlier is None else earlier + gradient

        if not output.requires_grad:  # frozen parameters and a plain input: make the output a leaf of the graph
            output.requires_grad_(True)
        output.register_hook(collect)

    @property
    def per_example(self) -> dict[str, torch.Tensor]:
        """Gradient per image, `{parameter name: [B, *parameter.shape]}`."""
        return self._gradients

    def squared_norms(self) -> torch.Tensor:
        """Squared L2 norm of each image's whole gradient, `[B]`, float32."""
        if not self._gradients:
            raise RuntimeError("No gradient was collected: run forward and backward inside the context.")
        norms = [torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float32) for g in self._gradients.values()]
        return torch.stack(norms).square().sum(0)

    def weighted_sum(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """`sum_i weights[i] * gradient_i` for each parameter. An image of weight 0 contributes exactly zero, even if its
        gradient is not finite.

        Args:
            weights (`torch.Tensor` of shape `[B]`): Clip factors, for instance.
        """
        kept = weights.nonzero().squeeze(1)
        if len(kept) == len(weights):
            return {name: torch.tensordot(weights.to(g.dtype), g, dims=1) for name, g in self._gradients.items()}
        return {
            name: torch.tensordot(weights[kept].to(g.dtype), g[kept], dims=1) for name, g in self._gradients.items()
        }


def _mixes_examples(module: nn.Module) -> bool:
    if not isinstance(module, nn.modules.batchnorm._NormBase) or not module.training:
        return False
    # An InstanceNorm mixes them only in the running statistics that it keeps.
    return module.track_running_stats or not isinstance(module, nn.modules.instancenorm._InstanceNorm)


ParameterGradients = list[tuple[torch.Tensor, torch.Tensor]]  # (parameter, gradient per image)


def _linear(layer: nn.Linear, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    images = len(x) // group_size
    x, grad = x.reshape(images, -1, layer.in_features), grad.reshape(images, -1, layer.out_features)
    gradients = [(layer.weight, torch.bmm(grad.transpose(1, 2), x))]
    if layer.bias is not None:
        gradients.append((layer.bias, grad.sum(1)))
    return gradients


def _conv2d(layer: nn.Conv2d, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    """One grouped convolution for several images at once: their activations become channels, `[K, images * channels, H, W]`,
    and `groups = images` keeps them apart, so the sum over the K rows is taken inside the call."""
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        raise TypeError(
            "Conv2d with string padding or a padding mode other than 'zeros' has no per-example gradient rule."
        )
    images = len(x) // group_size

    def side_by_side(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.unflatten(0, (-1, group_size)).transpose(0, 1)
        return rows.flatten(1, 2).contiguous()

    parts = []
    for start in range(0, images, IMAGES_PER_GROUPED_CALL):
        rows = slice(start * group_size, (start + IMAGES_PER_GROUPED_CALL) * group_size)
        some = len(x[rows]) // group_size
        weight_shape = (some * layer.out_channels, *layer.weight.shape[1:])
        part = conv2d_weight(
            side_by_side(x[rows]), weight_shape, side_by_side(grad[rows]),
            stride=layer.stride, padding=layer.padding, dilation=layer.dilation, groups=some * layer.groups,
        )  # fmt: skip
        parts.append(part.unflatten(0, (some, layer.out_channels)))
    gradients = [(layer.weight, parts[0] if len(parts) == 1 else torch.cat(parts))]
    if layer.bias is not None:
        gradients.append((layer.bias, grad.sum((2, 3)).unflatten(0, (images, group_size)).sum(1)))
    return gradients


def _group_norm(layer: nn.GroupNorm, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    if not layer.affine:
        return []
    rows, channels = x.shape[:2]
    normalised = F.group_norm(x, layer.num_groups, eps=layer.eps)
    per_row = (grad * normalised).reshape(rows, channels, -1).sum(2)
    bias = grad.reshape(rows, channels, -1).sum(2)
    return [
        (layer.weight, per_row.unflatten(0, (-1, group_size)).sum(1)),
        (layer.bias, bias.unflatten(0, (-1, group_size)).sum(1)),
    ]


def _embedding(layer: nn.Embedding, x: torch.Tensor, grad: torch.Tensor, group_size: int) -> ParameterGradients:
    images = len(x) // group_size
    gradient = grad.new_zeros(images, *layer.weight.shape)
    index = x.reshape(images, -1)
    grad = grad.reshape(images, index.shape[1], -1)
    if layer.padding_idx is not None:
        grad = grad * (index != layer.padding_idx).unsqueeze(2)
    gradient.scatter_add_(1, index.unsqueeze(2).expand_as(grad), grad)
    return [(layer.weight, gradient)]


_RULES: dict[type, Callable[..., ParameterGradients]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding,
}
