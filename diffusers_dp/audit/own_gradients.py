# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether the gradients per image of a run's own model are those of autograd, tried on a few records of noise.

Gradients per image are formed layer by layer, from what a layer is given and the gradient of what it gives. Where a
weight acts in another way as well, that part is missing, and nothing says so: the guarantee holds, but the model
learns from a wrong gradient.
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from ..accounting.ledger_row import LedgerRow
from ..gradients.parts import widened
from ..gradients.step import Gradients
from ..gradients.supported import FREEZE, UnsupportedModel
from ..randomness.private_generator import PrivateGenerator
from .checks import Check
from .probes import draws_by_record, noiseless_sum, one_arithmetic, public_seeds
from .stand_ins import AuditedModel, labels_of, tagged_noise


NUM_RECORDS = 4  # two of them of one class
UNCLIPPED = 1e30  # a clip norm that cuts nothing
MOVED = 0.1  # of a weight's root mean square; of a weight of zeros: its standard deviation
# Relative. On 27 models of the library rounding makes 1.4e-5 at most in float32, and 4.4e-3 in mixed precision, whose
# numbers have eight bits. A missing part made 0.46 or more on those of the tests.
TOLERANCE, TOLERANCE_BF16 = 1e-3, 5e-2
SMALL = 1e-2  # of the whole gradient: a parameter whose own is smaller is measured by this
MOST_NAMED = 5


def own_gradient_checks(row: LedgerRow, audited: AuditedModel, *, bf16: bool) -> list[Check]:
    """
    The unclipped sum over records, through the real door, against autograd's gradient of the summed loss, parameter
    by parameter. Both see the same rows and the same draws.

    The trained weights are a little away from where they start meanwhile, and are put back bit by bit: behind a layer
    that starts from zeros every gradient is zero, and no fault shows.

    Args:
        bf16 (`bool`): Whether the model computes in mixed precision.

    Raises:
        UnsupportedModel: They differ; names the parameters. Or `check_model` refuses the model.
    """
    images = tagged_noise(NUM_RECORDS, audited.image_shape)
    labels = labels_of(audited.class_names, np.arange(NUM_RECORDS) // 2)
    own, calls = draws_by_record(audited.row_loss), []

    def loss(
        model: nn.Module, rows: torch.Tensor, row_labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        calls.append((rows, row_labels, generator))
        with public_seeds():  # draws that are not the generator's are the same as well
            return own(model, rows, row_labels, generator)

    parameters = audited.parameters
    with one_arithmetic(audited.model), _moved(list(parameters.values())):
        found = noiseless_sum(row, audited, loss, images, labels, UNCLIPPED)
        losses = loss(audited.model, *calls[0])
        parts = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
    draws = len(losses) // NUM_RECORDS
    expected = {
        name: torch.zeros_like(found[name]) if part is None else widened(part.to_dense()) / draws
        for name, part in zip(parameters, parts, strict=True)
    }
    return [_compared(found, expected, TOLERANCE_BF16 if bf16 else TOLERANCE)]


def _compared(found: Gradients, expected: Gradients, tolerance: float) -> Check:
    """Raises `UnsupportedModel`."""
    least = SMALL * torch.stack([part.norm() for part in expected.values()]).norm()
    errors = {
        name: float((found[name] - part).norm() / part.norm().clamp_min(least)) for name, part in expected.items()
    }
    differing = [f"'{name}'" for name, error in errors.items() if not error < tolerance]  # NaN is none
    if differing:
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        raise UnsupportedModel(
            f"The model's gradients per image are not autograd's for {', '.join(differing[:MOST_NAMED])}{more}: these "
            "weights also act past the call of their layer, or a hook changes what their layer gives. Call the layer "
            "itself, neither its `forward` nor a function of its weight such as F.linear(x, layer.weight), and remove "
            f"hooks; or {FREEZE}."
        )
    return Check("gradients of the model: relative difference from autograd's", max(errors.values()), 0.0, None, True)


@contextlib.contextmanager
def _moved(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Adds a little noise to each, and takes it back by copies, not by subtraction."""
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for number, parameter in enumerate(parameters):
                generator = torch.Generator(parameter.device).manual_seed(number)
                noise = torch.empty_like(parameter).normal_(generator=generator)
                parameter.add_(noise * MOVED * (parameter.square().mean().sqrt() if parameter.any() else 1.0))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
