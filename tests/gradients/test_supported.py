# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A model without exact gradients per image is refused by name, with the remedy, and the ledger stays empty."""

import pytest
import torch
from torch import nn

from diffusers_dp.gradients.supported import UnsupportedModel
from support.doors import gradient, make_door, make_ledger


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize(
    ("layer", "name", "remedy"),
    [
        (lambda: nn.utils.spectral_norm(nn.Linear(3, 3)), "Linear", "remove_spectral_norm"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), "Linear", "remove_parametrizations"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), "Conv2d", "remove_parametrizations"),
        (Table, "Table", "scale_shift_table.*requires_grad_"),
        (lambda: nn.ReLU(inplace=True), "ReLU", "inplace=False"),
        (lambda: nn.Embedding(3, 3, max_norm=1.0), "Embedding", "without max_norm"),
        (lambda: nn.PReLU(), "PReLU", "requires_grad_.*Linear"),
        (lambda: nn.BatchNorm2d(3), "BatchNorm2d", "GroupNorm"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_refused_by_name_before_anything_is_spent(layer, name, remedy):
    ledger = make_ledger()
    with pytest.raises(UnsupportedModel, match=rf"{name} \('1'\).*{remedy}") as refused:
        gradient(make_door(), nn.Sequential(nn.Flatten(), layer()), ledger=ledger)
    assert ledger.rows == [] and refused.value.exit_code == 2


class PartlyFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.table = nn.Linear(64, 2), Table().requires_grad_(False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)).requires_grad_(False)

    def forward(self, x):
        return self.normed(self.head(x.flatten(1)) + self.table.scale_shift_table)


def test_what_is_frozen_is_welcome():
    assert set(gradient(make_door(), PartlyFrozen())) == {"head.weight", "head.bias"}
