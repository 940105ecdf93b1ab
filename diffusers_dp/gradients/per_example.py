"""Per-example gradients, one per image and never one per draw.

With noise multiplicity K an image takes part in a batch as K rows, image-major: rows `i*K ... i*K + K-1` are the K
draws of image `i`. The mean of their gradients is one vector per image, and it is this vector that DP-SGD clips.
Frameworks that form a gradient per row first need B*K copies of the model; here every layer forms its gradient *per
image* right away, while the ordinary backward pass runs. The parameters are frozen in the meantime, so no gradient is
computed twice.
"""

from functools import cached_property, partial

import torch
from torch import nn

from ..mechanisms.mechanism import STEPS
from .grid import clip_steps, fits, rounded_in_place
from .parts import Parts, norms, weighted_sum, without_autocast
from .rules import ParameterGradients, Rule, rule_of
from .supported import FREEZE, UnsupportedModel, check_model


SMALL = 4096  # numbers of a parameter, up to which its gradients are handled together with those of others
SIDE_BY_SIDE = "the small parameters"


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
    a weight that is also used by itself (`F.linear(x, layer.weight)`) lacks that part of its gradient. The pre-flight
    of a run compares with autograd. It also asks with batches of several sizes: a layer whose dimension 0 is positions
    is refused unless there happen to be as many as rows, which holds for one size alone.

    The model is left as it was found: hooks are removed, `requires_grad` is restored, `.grad` is never written.
    Parameters that did not require a gradient are skipped. First-order losses only: when a layer's hook fires twice
    for one forward pass, or under `create_graph=True`, the collected gradient would be silently wrong, so this raises.

    Units of uneven size (all images of one patient, say) are given by `unit_index` in place of `group_size`: row `r`
    belongs to unit `unit_index[r]`, in any order, and `B` is the highest number plus one. A unit without rows has a
    gradient of zero.

    Args:
        model (`nn.Module`): Its trainable parameters belong to `Linear`, `Conv1d`, `Conv2d`, `GroupNorm`, `LayerNorm`,
            `RMSNorm` or `Embedding`.
        group_size (`int`, defaults to 1): K, rows per image.
        unit_index (`torch.Tensor` of shape `[rows]`, int64, *optional*): The unit of each row.
        num_rows (`int`, *optional*): Rows that the loss is called with, which each layer must be given. Unset: with
            `group_size`, as many as the first layer.

    Sums and norms are float32 (float64 for such a model), also under bfloat16 autocast, inside or around the context.
    float16 is refused: it needs loss scaling, which changes gradients before they are clipped.

    Raises:
        UnsupportedModel: See `check_model`; both a `UsageError` and a `TypeError`. Or a layer is given another number
            of rows than the loss, or a number that is no multiple of `group_size`.
        ValueError: `group_size` < 1, or both `group_size` and `unit_index` are given.
        RuntimeError: The loss is not first-order, a layer ran in float16, or the input of a layer was changed in place
            afterwards.
    """

    def __init__(
        self,
        model: nn.Module,
        group_size: int = 1,
        *,
        unit_index: torch.Tensor | None = None,
        num_rows: int | None = None,
    ):
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {group_size}.")
        if unit_index is not None and group_size != 1:
            raise ValueError("Give either group_size or unit_index.")
        self.model = model
        self.units: Units = EvenUnits(group_size, num_rows) if unit_index is None else UnevenUnits(unit_index)
        self._names: dict[torch.Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        check_model(model)
        self._sums: dict[str, Parts] = {}
        self._small: dict[str, torch.Tensor] = {}
        self._norms: dict[str, torch.Tensor] = {}
        self._handles: list = []

    def __enter__(self) -> "per_example_gradients":
        for name, module in self.model.named_modules():
            if any(p in self._names for p in module.parameters(recurse=False)):
                self._handles.append(module.register_forward_hook(partial(self._watch, name)))
        for parameter in self._names:
            parameter.requires_grad_(False)
        return self

    def __exit__(self, *exception) -> None:
        for handle in self._handles:
            handle.remove()
        for parameter in self._names:
            parameter.requires_grad_(True)

    def _watch(self, name: str, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        if output.dtype == torch.float16:
            raise RuntimeError(
                f"{type(module).__name__} ran in float16, whose loss scaling changes gradients before they are "
                "clipped: use bfloat16."
            )
        if not inputs:
            raise UnsupportedModel(
                f"{type(module).__name__} {name!r} is called by keyword, where its input is not seen: write layer(x)."
            )
        activation = inputs[0].detach()
        self._check_rows(name, module, len(activation) if activation.dim() else 0)
        if output.element_size() < activation.element_size() and activation.is_floating_point():
            # Autocast: keep what the layer read, not the wider tensor it came from.
            activation = activation.to(output.dtype)
        rule = rule_of(module)
        assert rule is not None  # else the model was refused
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
            with without_autocast(grad_output.device):
                gradients = self.units.sums(rule, module, activation, grad_output)
            for parameter, parts in gradients:
                if parameter in self._names:
                    self._keep(self._names[parameter], parts)

        if not output.requires_grad:  # frozen parameters and a plain input: make the output a leaf of the graph
            output.requires_grad_(True)
        output.register_hook(collect)

    def _check_rows(self, name: str, module: nn.Module, rows: int) -> None:
        """A layer whose rows are windows, frames or positions would have their gradients clipped one by one. The
        message counts no rows, because those of a Poisson sample are secret."""
        layer = f"{type(module).__name__} ('{name}')"
        if self.units.total_rows not in (None, rows):
            raise UnsupportedModel(
                f"{layer} was given another number of rows than the loss or another layer: dimension 0 of its input "
                "must be the rows, because the gradient of each image is clipped as a whole. Keep windows, frames and "
                f"positions in other dimensions, or {FREEZE}."
            )
        if rows % self.units.group_size != 0:
            raise UnsupportedModel(
                f"{layer}: {rows} rows cannot be split into images of {self.units.group_size} rows each."
            )
        self.units.total_rows = rows

    def _keep(self, name: str, parts: Parts) -> None:
        parts = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
        if parts[0].dtype == torch.float32 and parts[0][0].numel() <= SMALL:
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            self._small[name] = self._small[name] + whole if name in self._small else whole
            return
        if name in self._sums:  # a layer used twice, or a shared parameter: its gradients add up
            parts = [torch.cat(self._sums[name]) + torch.cat(parts)]
        self._sums[name] = parts
        # Now, while they are in the cache: read again later, they would cost as much as to write them.
        self._norms[name] = norms(parts)

    @property
    def per_example(self) -> dict[str, torch.Tensor]:
        """Gradient per image, `{parameter name: [B, *parameter.shape]}`."""
        whole = {name: torch.cat(parts) for name, parts in self._sums.items()}
        whole |= {name: gradient.clone() for name, gradient in self._small.items()}
        for gradient in whole.values():
            rows = self._rows_on(gradient.device)
            gradient /= rows if isinstance(rows, int) else rows.view(-1, *[1] * (gradient.dim() - 1))
        return whole

    def squared_norms(self) -> torch.Tensor:
        """Squared L2 norm of each image's whole gradient, `[B]`, float32."""
        if not self._sums and not self._small:
            raise RuntimeError("No gradient was collected: run forward and backward inside the context.")
        if self._small and SIDE_BY_SIDE not in self._norms:
            self._norms[SIDE_BY_SIDE] = norms([self._side_by_side])
        every = torch.stack(list(self._norms.values()))
        return (every / self._rows_on(every.device)).square().sum(0)

    @cached_property
    def _side_by_side(self) -> torch.Tensor:
        """The small gradients of each image in one row, `[B, n]`: most of a model's tensors are biases and norms, and
        one call serves them all."""
        return torch.cat([gradient.flatten(1) for gradient in self._small.values()], dim=1)

    def weighted_sum(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """`sum_i weights[i] * gradient_i` for each parameter. An image of weight 0 contributes exactly zero, even if
        its gradient is not finite.

        Args:
            weights (`torch.Tensor` of shape `[B]`): Clip factors, for instance.
        """
        small = self._wiped(weights)
        weights = weights / self._rows_on(weights.device)  # what is kept are sums over rows
        with without_autocast(weights.device):
            return self._added(small, weights)

    def rounded_sum(self, max_norm: float, counted: torch.Tensor) -> dict[str, torch.Tensor]:
        """The clipped gradients of the images that count, as whole numbers (`grid`), added up for each parameter. What
        was collected is rounded in its place: nothing else can be asked afterwards.

        Args:
            max_norm (`float`): Clip norm, which is `grid.STEPS` steps long.
            counted (`torch.Tensor` of bool, shape `[B]`): Images that count.

        Returns:
            `dict[str, torch.Tensor]`: Whole numbers, float64.

        Raises:
            UsageError: There are too many parameters for the grid.
        """
        limit = clip_steps(sum(parameter.numel() for parameter in self._names))
        norms = self.squared_norms().sqrt()
        factors = limit / norms.clamp_min(limit * max_norm / STEPS)
        factors = torch.where(counted & norms.isfinite(), factors, 0.0)
        # In place, so that parts of another memory format are copied first.
        self._sums = {name: [part.contiguous() for part in parts] for name, parts in self._sums.items()}
        small = self._wiped(factors)
        factors = factors / self._rows_on(factors.device)
        with without_autocast(factors.device):
            squares = [rounded_in_place(parts, factors) for parts in (*self._sums.values(), [small])]
            weights = fits(torch.stack(squares).sum(0)).to(small.dtype)
            return self._added(small, weights, wide=True)

    def _wiped(self, weights: torch.Tensor) -> torch.Tensor:
        """The small gradients. A gradient of weight 0 that is not finite is wiped out everywhere."""
        broken = (weights == 0) & ~self.squared_norms().isfinite()  # 0 times infinity is not 0
        small = self._side_by_side if self._small else weights.new_empty(len(weights), 0)
        # To look costs nothing on a CPU and leaves out a pass over all gradients; a GPU would have to finish first.
        if broken.device.type != "cpu" or broken.any():
            _wipe_out([*self._sums.values(), [small]], broken)
        return small

    def _added(self, small: torch.Tensor, weights: torch.Tensor, wide: bool = False) -> dict[str, torch.Tensor]:
        total = {name: weighted_sum(parts, weights, wide) for name, parts in self._sums.items()}
        flat = weighted_sum([small], weights, wide).split([g[0].numel() for g in self._small.values()])
        return total | {
            name: part.view(gradient.shape[1:])
            for part, (name, gradient) in zip(flat, self._small.items(), strict=True)
        }

    def _rows_on(self, device: torch.device) -> int | torch.Tensor:
        """How many rows each image has."""
        rows = self.units.num_rows
        return rows if isinstance(rows, int) else rows.to(device, non_blocking=True)


def _wipe_out(every: list[Parts], images: torch.Tensor) -> None:
    for parts in every:
        for part, chosen in zip(parts, images.split([len(part) for part in parts]), strict=True):
            part.masked_fill_(chosen.view(-1, *[1] * (part.dim() - 1)), 0.0)


class EvenUnits:
    """Units of `group_size` consecutive rows each."""

    def __init__(self, group_size: int, total_rows: int | None = None):
        self.group_size = group_size
        self.num_rows = group_size  # of each unit
        self.total_rows = total_rows

    def sums(self, rule: Rule, layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> ParameterGradients:
        return rule(layer, x, grad, self.group_size)


class UnevenUnits:
    """Units that any number of rows belongs to. Those with the same number of rows go through a rule together.

    Which rows are whose is worked out where `unit_index` is: on the CPU, nothing waits for a GPU.
    """

    def __init__(self, unit_index: torch.Tensor):
        if unit_index.dim() != 1 or unit_index.dtype != torch.int64 or len(unit_index) == 0 or unit_index.min() < 0:
            raise ValueError("unit_index must be a non-empty vector of int64, 0 or above.")
        counts = unit_index.bincount()
        by_unit = unit_index.argsort(stable=True)
        self.total_rows: int | None = len(unit_index)
        self.group_size, self.num_rows = 1, counts.clamp_min(1)
        self.groups = [  # (rows of a unit, the units, their rows unit by unit)
            (size, (counts == size).nonzero().squeeze(1), by_unit[counts[unit_index[by_unit]] == size])
            for size in counts.unique().tolist()
            if size > 0
        ]

    def sums(self, rule: Rule, layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> ParameterGradients:
        total: dict[torch.Tensor, torch.Tensor] = {}
        for size, *where in self.groups:
            units, rows = (index.to(x.device, non_blocking=True) for index in where)
            for parameter, parts in rule(layer, x[rows], grad[rows], size):
                if parameter not in total:
                    total[parameter] = parts[0].new_zeros(len(self.num_rows), *parts[0].shape[1:])
                total[parameter][units] = torch.cat(parts)
        return [(parameter, [gradient]) for parameter, gradient in total.items()]


Units = EvenUnits | UnevenUnits
