# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Records that move each other, however little: planted in the loss, the clipper and the queries, and seen as a sum
that is not one."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.audit.probes import additivity_check, additivity_checks
from diffusers_dp.audit.stand_ins import AuditedModel, stand_in
from diffusers_dp.audit.targets import QueryTarget, target_runs
from diffusers_dp.gradients import step
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy import sensitive
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.queries.frequency import FrequencyFeatures, RandomFourierFeatures
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.audits import STEP, changed


ORIGINAL_FACTORS, ORIGINAL_NORMAL = step.clip_factors, PrivateGenerator.normal


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
    "changes", [{}, {"noise_multiplicity": 1}, {"mechanism": sampled(0.2, 2.0, max_images_per_unit=3)}], ids=str
)
def test_honest_sums_add_up(changes):
    asked = changed(**changes)
    for model in (audited(), stand_in()):
        assert all(check.passed for check in additivity_checks(asked, model, "it"))
        assert model.model.training and all(module.training for module in model.model.modules())


@pytest.mark.parametrize("loss", [divided_by_the_mean_error, weighted_by_class])
def test_losses_that_the_batch_scales_show_where_nothing_is_clipped(loss):
    at_c, unclipped = additivity_checks(STEP, audited(loss), "the model")
    assert at_c.passed and not unclipped.passed


def test_losses_that_mix_records_show():
    assert not any(check.passed for check in additivity_checks(STEP, audited(mixed_with_the_neighbour), "the model"))


def test_few_answers_are_held_at_a_time():
    """Each has as many numbers as the model."""
    held, most = weakref.WeakSet(), []

    def answer(which: np.ndarray) -> torch.Tensor:
        given = torch.full((3,), float(len(which)))
        held.add(given)
        most.append(len(held))
        return given

    assert additivity_check("it", answer, np.arange(20)[:, None]).passed and max(most) <= 3


@pytest.mark.parametrize(("fault", "seen"), [(at_the_median, 1), (more_in_a_large_batch, 0)])
@pytest.mark.parametrize("build", [audited, stand_in])
def test_clippers_that_look_at_the_batch_show(fault, seen, build, monkeypatch):
    monkeypatch.setattr(step, "clip_factors", fault)
    assert not additivity_checks(STEP, build(), "it")[seen].passed


# One-shot queries.

SHAPE, CLASSES = (1, 8, 8), ("a", "b", "c", "d")


def query_failures(kind, rate=0.5):
    if kind == "central_images":
        query = MeanImages(image_shape=SHAPE, sample_rate=rate)
    else:
        query = FrequencyFeatures(feature_map=RandomFourierFeatures(SHAPE, 40, 10.0, 0))
    asked = QueryTarget(query, LedgerRow(kind, query.mechanism(2.0)), SHAPE, CLASSES)
    return target_runs(asked, delta=1e-5, draws=60, accountant="rdp")[0].failures


def scaled_images(monkeypatch):
    """Central images divided by the largest value of the batch; of Fourier features the projection is."""
    original = sensitive.SensitiveImages.noisy_sum

    def fault(self, fn, mechanism, **query):
        return original(self, lambda x, y: fn(x / x.max().clamp_min(1e-9), y), mechanism, **query)

    monkeypatch.setattr(sensitive.SensitiveImages, "noisy_sum", fault)
    # The door itself would refuse such features.
    monkeypatch.setattr(sensitive, "features_of_zeros", lambda fn, shape, *_, **__: fn(torch.zeros(1, *shape), None))


def clipped_by_the_longest(monkeypatch):
    def fault(features, clip_norm):
        return features * min(1.0, clip_norm / float(features.norm(dim=1).max().clamp_min(1e-9)))

    monkeypatch.setattr(sensitive, "_clip", fault)


def noise_where_there_are_images(monkeypatch):
    """In classes that occur; where none does, in all."""
    original, kept = torch.Tensor.index_add_, []

    def index_add(self, dim, index, source):
        kept[:] = [original(self, dim, index, source)]
        return kept[0]

    def normal(self, shape, std, *rest):
        noise, there = ORIGINAL_NORMAL(self, shape, std, *rest), kept[0].abs().sum(1) > 0
        return noise * there[:, None] if there.any() else noise

    monkeypatch.setattr(torch.Tensor, "index_add_", index_add)
    monkeypatch.setattr(PrivateGenerator, "normal", normal)


@pytest.mark.parametrize(
    ("kind", "plant", "caught_by"),
    [
        ("central_images", scaled_images, "additivity"),
        ("central_images", clipped_by_the_longest, "additivity"),
        ("frequency_features", noise_where_there_are_images, "noise beside the unit"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_queries_that_look_at_the_batch_show(kind, plant, caught_by, monkeypatch):
    plant(monkeypatch)
    assert any(caught_by in failure for failure in query_failures(kind))
