"""Per-example gradients, one per image and never one per draw.

With noise multiplicity K an image takes part in a batch as K rows, image-major: rows `i*K ... i*K + K-1` are the K
draws of image `i`. The mean of their gradients is one vector per image, and it is this vector that DP-SGD clips.
Frameworks that form a gradient per row first need B*K copies of the model; here every layer forms its gradient *per
image* right away, while the ordinary backward pass runs. The parameters are frozen in the meantime, so no gradient is
computed twice.
"""

import torch
from torch import nn

from .rules import ParameterGradients, Rule, rule_of


class per_example_gradients:
    """Context manager that collects the gradient of a summed loss per image.

    Forward **and** backward run inside. The loss is the **sum** over all `B * group_size` rows of independent per-row
    losses; the gradient of image `i` is the mean over its `group_size` rows.

    ```py
    with per_example_gradients(model, group_size=K) as g:
        row_losses(model(rows)).sum().backward()
    norms = g.squared_norms().sqrt()           # [B]
    total = g.weighted_sum(clip_factors)       # dict of tensors shaped like the parameters
    ```

    Dimension 0 of every layer's input is the rows, as many in each layer, and every parameter acts through its layer:
    a weight that is also used by itself (`F.linear(x, layer.weight)`) lacks that part of its gradient.

    The model is left as it was found: hooks are removed, `requires_grad` is restored, `.grad` is never written.
    Parameters that did not require a gradient are skipped. First-order losses only: when a layer's hook fires twice
    for one forward pass, or under `create_graph=True`, the collected gradient would be silently wrong, so this raises.

    Units of uneven size (all images of one patient, say) are given by `unit_index` in place of `group_size`: row `r`
    belongs to unit `unit_index[r]`, in any order, and `B` is the highest number plus one. A unit without rows has a
    gradient of zero.

    Args:
        model (`nn.Module`): Its trainable parameters belong to `Linear`, `Conv2d`, `GroupNorm` or `Embedding`, or to
            another layer for which Opacus has a grad sampler; that one forms a gradient per row first.
        group_size (`int`, defaults to 1): K, rows per image.
        unit_index (`torch.Tensor` of shape `[rows]`, int64, *optional*): The unit of each row.

    Sums and norms are float32 (float64 for such a model), also under bfloat16 autocast, inside or around the context.
    float16 is refused: it needs loss scaling, which changes gradients before they are clipped.

    Raises:
        TypeError: A trainable parameter belongs to a layer without a rule, or a layer mixes examples (BatchNorm in
            training mode).
        ValueError: `group_size` < 1, a number of rows that is no multiple of it or another than that of `unit_index`,
            or both given.
        RuntimeError: The loss is not first-order, a layer ran in float16, or the input of a layer was changed in place
            afterwards.
    """

    def __init__(self, model: nn.Module, group_size: int = 1, *, unit_index: torch.Tensor | None = None):
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {group_size}.")
        if unit_index is not None and group_size != 1:
            raise ValueError("Give either group_size or unit_index.")
        self.model = model
        self.units: Units = EvenUnits(group_size) if unit_index is None else UnevenUnits(unit_index)
        self._names: dict[torch.Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        for module_name, module in model.named_modules():
            if _mixes_examples(module):
                raise TypeError(
                    f"{type(module).__name__} ('{module_name}') computes statistics over a batch, so that one image "
                    "would move every gradient; use GroupNorm, or put the layer into evaluation mode."
                )
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                rule_of(module, module_name)
        self._sums: dict[str, list[torch.Tensor]] = {}  # parts of consecutive images
        self._norms: dict[str, torch.Tensor] = {}
        self._handles: list = []

    def __enter__(self) -> "per_example_gradients":
        for module in self.model.modules():
            if any(p in self._names for p in module.parameters(recurse=False)):
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
        if output.dtype == torch.float16:
            raise RuntimeError(
                f"{type(module).__name__} ran in float16, whose loss scaling changes gradients before they are "
                "clipped: use bfloat16."
            )
        activation = inputs[0].detach()
        self.units.check(len(activation))
        if output.element_size() < activation.element_size() and activation.is_floating_point():
            # Autocast: keep what the layer read, not the wider tensor it came from.
            activation = activation.to(output.dtype)
        rule = rule_of(module)
        fired, version = False, activation._version

        def collect(grad_output: torch.Tensor) -> None:
            nonlocal fired
            if fired or torch.is_grad_enabled():
                raise RuntimeError(
                    "per_example_gradients needs a first-order loss, and this one differentiates a gradient: use "
                    "torch.func.grad and vmap for it."
                )
            if activation._version != version:
                raise RuntimeError(f"The input of a {type(module).__name__} was changed in place after it was used.")
            fired = True
            with torch.autocast(grad_output.device.type, enabled=False):
                gradients = self.units.sums(rule, module, activation, grad_output)
            for parameter, parts in gradients:
                if parameter in self._names:
                    self._keep(self._names[parameter], parts)

        if not output.requires_grad:  # frozen parameters and a plain input: make the output a leaf of the graph
            output.requires_grad_(True)
        output.register_hook(collect)

    def _keep(self, name: str, parts: list[torch.Tensor]) -> None:
        parts = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
        if name in self._sums:  # a layer used twice, or a shared parameter: its gradients add up
            parts = [torch.cat(self._sums[name]) + torch.cat(parts)]
        self._sums[name] = parts
        # Now, while they are in the cache: read again later, they would cost as much as to write them.
        norms = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=torch.float32) for part in parts]
        self._norms[name] = torch.cat(norms)

    @property
    def per_example(self) -> dict[str, torch.Tensor]:
        """Gradient per image, `{parameter name: [B, *parameter.shape]}`."""
        count = self.units.num_rows
        return {
            name: torch.cat(parts) / (count if isinstance(count, int) else count.view(-1, *[1] * (parts[0].dim() - 1)))
            for name, parts in self._sums.items()
        }

    def squared_norms(self) -> torch.Tensor:
        """Squared L2 norm of each image's whole gradient, `[B]`, float32."""
        if not self._sums:
            raise RuntimeError("No gradient was collected: run forward and backward inside the context.")
        return (torch.stack(list(self._norms.values())) / self.units.num_rows).square().sum(0)

    def weighted_sum(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """`sum_i weights[i] * gradient_i` for each parameter. An image of weight 0 contributes exactly zero, even if
        its gradient is not finite.

        Args:
            weights (`torch.Tensor` of shape `[B]`): Clip factors, for instance.
        """
        broken = bool(((weights == 0) & ~self.squared_norms().isfinite()).any())  # 0 times infinity is not 0
        weights = weights / self.units.num_rows  # what is kept are sums over rows
        with torch.autocast(weights.device.type, enabled=False):
            return {name: _weighted_sum(parts, weights, leave_out_zeros=broken) for name, parts in self._sums.items()}


def _weighted_sum(parts: list[torch.Tensor], weights: torch.Tensor, *, leave_out_zeros: bool) -> torch.Tensor:
    total = parts[0].new_zeros(parts[0][0].numel())
    for part, part_weights in zip(parts, weights.split([len(part) for part in parts]), strict=True):
        if leave_out_zeros:
            kept = part_weights.nonzero().squeeze(1)
            part, part_weights = part[kept], part_weights[kept]
        total.addmv_(part.flatten(1).t(), part_weights.to(part.dtype))
    return total.view(parts[0].shape[1:])


def _mixes_examples(module: nn.Module) -> bool:
    if not isinstance(module, nn.modules.batchnorm._NormBase) or not module.training:
        return False
    # An InstanceNorm mixes them only in the running statistics that it keeps.
    return module.track_running_stats or not isinstance(module, nn.modules.instancenorm._InstanceNorm)


class EvenUnits:
    """Units of `group_size` consecutive rows each."""

    def __init__(self, group_size: int):
        self.group_size = group_size
        self.num_rows = group_size  # of each unit
        self.total_rows: int | None = None

    def check(self, rows: int) -> None:
        if rows % self.group_size != 0:
            raise ValueError(f"{rows} rows cannot be split into images of {self.group_size} rows each.")
        if self.total_rows not in (None, rows):
            raise ValueError(
                f"One layer was given {self.total_rows} rows and another {rows}: dimension 0 must be the rows."
            )
        self.total_rows = rows

    def sums(self, rule: Rule, layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> ParameterGradients:
        return rule(layer, x, grad, self.group_size)


class UnevenUnits:
    """Units that any number of rows belongs to. Those with the same number of rows go through a rule together."""

    def __init__(self, unit_index: torch.Tensor):
        if unit_index.dim() != 1 or unit_index.dtype != torch.int64 or len(unit_index) == 0 or unit_index.min() < 0:
            raise ValueError("unit_index must be a non-empty vector of int64, 0 or above.")
        counts = unit_index.bincount()
        by_unit = unit_index.argsort(stable=True)
        self.total_rows = len(unit_index)
        self.num_rows = counts.clamp_min(1)
        self.groups = [  # (rows of a unit, the units, their rows unit by unit)
            (size, (counts == size).nonzero().squeeze(1), by_unit[counts[unit_index[by_unit]] == size])
            for size in counts.unique().tolist()
            if size > 0
        ]

    def check(self, rows: int) -> None:
        if rows != self.total_rows:
            raise ValueError(f"A layer was given {rows} rows, but unit_index names {self.total_rows}.")

    def sums(self, rule: Rule, layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> ParameterGradients:
        total: dict[torch.Tensor, torch.Tensor] = {}
        for size, units, rows in self.groups:
            for parameter, parts in rule(layer, x[rows], grad[rows], size):
                if parameter not in total:
                    total[parameter] = parts[0].new_zeros(len(self.num_rows), *parts[0].shape[1:])
                total[parameter][units] = torch.cat(parts)
        return [(parameter, [gradient]) for parameter, gradient in total.items()]


Units = EvenUnits | UnevenUnits
