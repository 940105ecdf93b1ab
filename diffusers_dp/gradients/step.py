"""One DP-SGD step: clip each image's gradient, sum, add noise once, divide by a public constant (Abadi et al. 2016,
Alg. 1)."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..errors import UsageError
from ..randomness.private_generator import PrivateGenerator
from .parts import widened
from .per_example import per_example_gradients
from .supported import UnsupportedModel


# (model, images [rows, C, H, W] in [-1, 1], labels [rows] or None, secret source of random draws) -> losses [rows].
# Each is a function of its own row and its own draws alone, and how much is drawn depends on the number of rows alone.
RowLoss = Callable[[nn.Module, torch.Tensor, torch.Tensor | None, PrivateGenerator], torch.Tensor]
# images [b, C, H, W], labels [b] or None, which of them count, [b] of bool, and the unit of each, [b] from 0 on and on
# the CPU, or None where each image is one
PhysicalBatch = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]
Gradients = dict[str, torch.Tensor]


def clip_factors(squared_norms: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Factors that bring vectors to L2 norm at most `max_norm`; 0 for a vector whose norm is not finite, so that a
    broken record contributes nothing.

    Args:
        squared_norms (`torch.Tensor` of shape `[B]`): Squared L2 norms.
        max_norm (`float`): The clip norm C.

    Returns:
        `torch.Tensor` of shape `[B]` in [0, 1].
    """
    norms = squared_norms.sqrt()
    return torch.where(norms.isfinite(), max_norm / norms.clamp_min(max_norm), 0.0)


def clipped_gradient_sum(
    model: nn.Module, row_loss: RowLoss, batches: Iterable[PhysicalBatch], *, max_grad_norm: float,
    noise_multiplicity: int, generator: PrivateGenerator, exact: bool = False,
) -> Gradients:  # fmt: skip
    """Sum over images of clipped gradients, without noise: **not private**, for the door alone.

    Each image takes part as K = `noise_multiplicity` rows (noise multiplicity, Dockhorn et al. 2022, Section 3.2). The
    mean of their gradients is formed first and clipped as one vector, so removing an image moves the sum by at most
    `max_grad_norm` in L2 norm, whatever K is and however the images are spread over physical batches.

    An image that does not count keeps its rows, and with them its random draws: left out, it would shift the draws of
    all rows after it, and one record would move the gradients of others.

    Where a unit has several images, its vector is the mean over all rows of all of them; all images of a batch count
    then.

    Args:
        batches (iterable of `PhysicalBatch`): Images in [-1, 1]; a unit lies in one batch as a whole. Possibly none.
        generator (`PrivateGenerator`): What `row_loss` draws from. Amplification by sampling needs these draws secret
            as well: whoever knew them could tell from the others' rows whether an image was sampled.
        exact (`bool`, defaults to `False`): Whether clipped gradients are rounded to whole numbers, see `grid`.

    Returns:
        `dict[str, torch.Tensor]`: One sum for each trainable parameter; zeros if there were no images. With `exact`,
        whole numbers in float64.

    Raises:
        UnsupportedModel: A layer has no gradient of its own for each image; see `per_example_gradients`. Or no trained
            layer takes part in the loss.
        UsageError: The loss is no vector with one number for each row.
    """
    total: Gradients = {}
    for images, labels, counted, unit_index in batches:
        rows = images.repeat_interleave(noise_multiplicity, dim=0)
        row_labels = None if labels is None else labels.repeat_interleave(noise_multiplicity)
        if unit_index is None:
            collected = per_example_gradients(model, group_size=noise_multiplicity, num_rows=len(rows))
        else:
            collected = per_example_gradients(model, unit_index=unit_index.repeat_interleave(noise_multiplicity))
            counted = counted.new_ones(int(unit_index.max()) + 1)
        with collected as gradients:
            losses = row_loss(model, rows, row_labels, generator)
            _check_losses(losses, len(rows))
            losses.sum().backward()
            del losses  # and with them the graph and all activations
        squared_norms = gradients.squared_norms()
        if squared_norms.shape != counted.shape:  # `where` would repeat the only image's answer
            raise UnsupportedModel(
                "Some layer of the model has not one gradient for each image; freeze it with requires_grad_(False)."
            )
        factors = torch.where(counted, clip_factors(squared_norms, max_grad_norm), 0.0)
        summed = gradients.rounded_sum(max_grad_norm, counted) if exact else gradients.weighted_sum(factors)
        for name, part in summed.items():
            total[name] = total[name].add_(part) if name in total else part
    # In the model's order, in which the noise is drawn.
    return {
        name: total[name] if name in total else _zeros(parameter, exact)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _zeros(parameter: torch.Tensor, exact: bool) -> torch.Tensor:
    zeros = torch.zeros_like(parameter, requires_grad=False)
    return widened(zeros) if exact else zeros


def _check_losses(losses: torch.Tensor, num_rows: int) -> None:
    """A mean over rows, say, would make each image's part depend on how many others there are."""
    if not isinstance(losses, torch.Tensor) or losses.shape != (num_rows,):  # both lengths are secret
        raise UsageError("The loss must return one number for each row, a tensor of shape (rows,).")
    if not losses.requires_grad:
        raise UnsupportedModel(
            "The loss depends on no trained layer: call each layer itself, neither its `forward` nor a function of "
            "its weight, and outside of torch.no_grad()."
        )


def add_rounded_noise(total: Gradients, *, std: float, generator: PrivateGenerator) -> Gradients:
    """`total + round(N(0, std^2))`, in place: whole numbers plus whole numbers, each coordinate drawn once."""
    for each in total.values():
        each.add_(generator.rounded_normal(each.shape, std, each.device))
    return total


def add_noise(total: Gradients, *, std: float, normaliser: float, generator: PrivateGenerator) -> Gradients:
    """`(total + N(0, std^2)) / normaliser`, in place: the noise of one logical step, drawn once for each coordinate.

    Args:
        total (`dict[str, torch.Tensor]`): The sum; afterwards it holds the answer.
        std (`float`): Noise multiplier times clip norm.
        normaliser (`float`): A declared public constant, never a count of what was there.
    """
    for value in total.values():
        value.add_(generator.normal(value.shape, std, value.device)).div_(normaliser)
    return total
