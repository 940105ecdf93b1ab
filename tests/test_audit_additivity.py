# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Records that move each other, however little: planted in the loss, the clipper and the queries, and seen as a sum that is not one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from diffusers_dp.audit.additivity import additivity_checks
from diffusers_dp.audit.mechanism import AuditedModel, Mechanism, stand_in
from diffusers_dp.dpsgd import step


MECHANISM = Mechanism(
    sample_rate=0.2, noise_multiplier=2.0, max_grad_norm=1e-3, normaliser=77, noise_multiplicity=3, truncated=False, delta=1e-5
)  # fmt: skip
ORIGINAL_FACTORS = step.clip_factors


class Net(nn.Module):
    """Small, with a class table, and dropout, which the probe must not take for a fault."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 16), nn.Linear(16, 64)
        self.classes, self.dropout = nn.Embedding(5, 16), nn.Dropout(0.2)

    def forward(self, rows, labels):
        return self.second(self.dropout((self.first(rows.flatten(1)) + self.classes(labels)).tanh()))


def errors(model, rows, labels, generator):
    noisy = rows.flatten(1) + generator.normal((len(rows), 64), 1.0)
    return (model(noisy, labels) - rows.flatten(1)).square().mean(1)


def audited(loss=errors):
    return AuditedModel(Net(), loss, (1, 8, 8), ("a", "b", "c", "d", "e"))


def divided_by_the_mean_error(*arguments):
    losses = errors(*arguments)
    return losses / losses.detach().mean()


def mixed_with_the_neighbour(model, rows, labels, generator):
    return errors(model, 0.9 * rows + 0.1 * rows.roll(1, 0), labels, generator)


def weighted_by_class(model, rows, labels, generator):
    return errors(model, rows, labels, generator) / labels.bincount()[labels]


def at_the_median(squared_norms, max_norm):
    return ORIGINAL_FACTORS(squared_norms, min(max_norm, float(squared_norms.sqrt().median())))


def more_in_a_large_batch(squared_norms, max_norm):
    return ORIGINAL_FACTORS(squared_norms, max_norm * (1.02 if len(squared_norms) > 16 else 1.0))


@pytest.mark.parametrize(
    "changes", [{}, {"truncated": True}, {"noise_multiplicity": 1}, {"max_images_per_unit": 3}], ids=str
)
def test_honest_sums_add_up(changes):
    mechanism = replace(MECHANISM, **changes)
    for model in (audited(), stand_in()):
        assert all(check.passed for check in additivity_checks(mechanism, model, "it"))
        assert model.model.training and all(module.training for module in model.model.modules())


@pytest.mark.parametrize("loss", [divided_by_the_mean_error, weighted_by_class])
def test_losses_that_the_batch_scales_show_where_nothing_is_clipped(loss):
    at_c, unclipped = additivity_checks(MECHANISM, audited(loss), "the model")
    assert at_c.passed and not unclipped.passed


def test_losses_that_mix_records_show():
    assert not any(
        check.passed for check in additivity_checks(MECHANISM, audited(mixed_with_the_neighbour), "the model")
    )


@pytest.mark.parametrize(("fault", "seen"), [(at_the_median, 1), (more_in_a_large_batch, 0)])
@pytest.mark.parametrize("build", [audited, stand_in])
def test_clippers_that_look_at_the_batch_show(fault, seen, build, monkeypatch):
    monkeypatch.setattr(step, "clip_factors", fault)
    assert not additivity_checks(MECHANISM, build(), "it")[seen].passed
