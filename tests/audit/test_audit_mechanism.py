# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The audit of the mechanism: honest code passes, and each planted fault is noticed by the statistic that is made for
it."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.audit import targets
from diffusers_dp.audit.canaries import FaultyNoise, read_tags, tag_images
from diffusers_dp.audit.checks import exact_check, stand_in_runs
from diffusers_dp.audit.probes import noise_checks_at_the_door, sensitivity_checks
from diffusers_dp.audit.report import Audit
from diffusers_dp.audit.stand_ins import stand_in
from diffusers_dp.audit.targets import QueryTarget, target_runs
from diffusers_dp.gradients import step
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy import passages, sensitive
from diffusers_dp.privacy.records import PrivateRecords
from diffusers_dp.queries.central_images import MeanImages, ModeImages
from diffusers_dp.queries.frequency import FrequencyFeatures, RandomFourierFeatures
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.audits import DELTA, STEP, changed
from support.few import few


ORIGINAL_SUM, ORIGINAL_NOISE = step.clipped_gradient_sum, step.add_noise
ORIGINAL_SAMPLE, ORIGINAL_FACTORS = passages.poisson_sample, step.clip_factors


def checks_of(asked=STEP):
    checks = sensitivity_checks(asked, thorough=True)
    return checks + noise_checks_at_the_door(asked, stand_in())


def runs_of(asked=STEP):
    return stand_in_runs(asked, DELTA, quick=True)


@functools.cache
def honest():
    """What honest code gives: a fault is looked for in one of the two."""
    return runs_of(), checks_of()


def audit(runs, checks):
    return Audit("mechanism", {}, {"dp_sgd": runs}, checks, 0.0)


@pytest.mark.parametrize(
    "changes",
    few([
        {}, {"mechanism": sampled(1.0, 2.0)}, {"noise_multiplicity": 1, "clip_norm": 30.0},
        {"mechanism": sampled(0.01, 2.0)},
    ], 0, 3),
    ids=str,
)  # fmt: skip
def test_honest_code_passes_and_broken_noise_is_noticed(changes):
    asked = changed(**changes)
    found = audit(runs_of(asked), checks_of(asked))
    assert found.verdict == "VALID" and not found.reasons
    honest, off, halved = found.outcomes["dp_sgd"]
    assert not honest.failures and honest.formal_p_value > 1e-5
    for broken in (off, halved):
        assert any(STD in failure for failure in broken.failures)
        assert "scores: standard deviation without it" in broken.failures


# Faults. Each takes monkeypatch and breaks the library in one place.


def noise(monkeypatch, fault):
    monkeypatch.setattr(passages, "add_noise", fault)


def noise_of_another_size(scale):
    return lambda m: noise(m, lambda total, *, std, **rest: ORIGINAL_NOISE(total, std=scale(std), **rest))


def noise_per_physical_batch(monkeypatch):
    def fault(model, loss, batches, *, max_grad_norm, generator, **rest):
        total = None
        for batch in batches:
            part = ORIGINAL_SUM(model, loss, [batch], max_grad_norm=max_grad_norm, generator=generator, **rest)
            part = ORIGINAL_NOISE(part, std=2.0 * max_grad_norm, normaliser=1, generator=generator)
            total = part if total is None else {name: total[name] + part[name] for name in part}
        return total or ORIGINAL_SUM(model, loss, [], max_grad_norm=max_grad_norm, generator=generator, **rest)

    monkeypatch.setattr(sensitive, "clipped_gradient_sum", fault)
    noise(monkeypatch, lambda total, *, normaliser, **rest: {n: t / normaliser for n, t in total.items()})


def noise_reused_at_every_step(monkeypatch):
    key = bytes(16)
    noise(
        monkeypatch,
        lambda total, *, generator, **rest: ORIGINAL_NOISE(
            total, generator=FaultyNoise(getattr(generator, "noise_scale", 1.0), key), **rest
        ),
    )


def noise_reused_now_and_then(monkeypatch):
    """Every other step takes the noise of two steps before."""
    counter, kept = itertools.count(), {}

    def fault(total, *, std, normaliser, generator):
        number = next(counter)
        fresh = {n: generator.normal(t.shape, std) for n, t in total.items()}
        shapes = tuple((n, t.shape) for n, t in total.items())
        if number % 2 == 0:
            fresh = kept.setdefault((shapes, getattr(generator, "noise_scale", 1.0), number // 4), fresh)
        return {n: (t + fresh[n]) / normaliser for n, t in total.items()}

    noise(monkeypatch, fault)


def same_noise_for_every_tensor(monkeypatch):
    def fault(total, *, std, normaliser, generator):
        drawn = generator.normal((max(t.numel() for t in total.values()),), std)
        return {n: (t + drawn[: t.numel()].view(t.shape)) / normaliser for n, t in total.items()}

    noise(monkeypatch, fault)


def noise_of(draw):
    """Other draws of a tensor's noise."""
    return lambda monkeypatch: noise(
        monkeypatch,
        lambda total, *, std, normaliser, generator: {
            n: (t + draw(t, std, generator)) / normaliser for n, t in total.items()
        },
    )


def uniform_noise(monkeypatch):
    def normal(self, shape, std, device="cpu"):
        draws = (self.uniform(math.prod(shape)) - 0.5) * 12**0.5 * std
        return torch.from_numpy(draws).float().view(tuple(shape))

    monkeypatch.setattr(PrivateGenerator, "normal", normal)


def no_noise_on_an_empty_sample(monkeypatch):
    def fault(total, *, normaliser, **rest):
        if all((t == 0).all() for t in total.values()):
            return total
        return ORIGINAL_NOISE(total, normaliser=normaliser, **rest)

    noise(monkeypatch, fault)


def no_noise_on_biases(monkeypatch):
    def fault(total, *, normaliser, **rest):
        bare = {n: t / normaliser for n, t in total.items() if n.endswith("bias")}
        return {**ORIGINAL_NOISE(total, normaliser=normaliser, **rest), **bare}

    noise(monkeypatch, fault)


def mean_instead_of_sum(monkeypatch):
    def fault(model, loss, batches, **rest):
        batches = list(batches)
        total = ORIGINAL_SUM(model, loss, batches, **rest)
        count = max(1, sum(len(batch[0]) for batch in batches))
        return {n: t / count for n, t in total.items()}

    monkeypatch.setattr(sensitive, "clipped_gradient_sum", fault)


def divided_by_the_size_of_the_sample(monkeypatch):
    sizes = [1]

    def sample(*arguments):
        drawn = ORIGINAL_SAMPLE(*arguments)
        sizes.append(max(1, len(drawn)))
        return drawn

    monkeypatch.setattr(passages, "poisson_sample", sample)
    noise(monkeypatch, lambda total, *, normaliser, **rest: ORIGINAL_NOISE(total, normaliser=sizes[-1], **rest))


def tiled_rows(monkeypatch):
    """Row after row of all images, where the engine takes the rows of one image to follow each other."""
    monkeypatch.setattr(
        torch.Tensor, "repeat_interleave", lambda self, k, dim=None: torch.cat([self] * k)
    )  # fmt: skip


def factors(fault):
    return lambda monkeypatch: monkeypatch.setattr(step, "clip_factors", fault)


def clipped_tensor_by_tensor(monkeypatch):
    def fault(model, loss, batches, *, max_grad_norm, noise_multiplicity, generator, **rest):
        total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for images, _, counted, _ in batches:
            rows = images.repeat_interleave(noise_multiplicity, dim=0)
            with step.per_example_gradients(model, group_size=noise_multiplicity) as g:
                loss(model, rows, None, generator).sum().backward()
            for n, each in g.per_example.items():
                keep = torch.where(counted, ORIGINAL_FACTORS(each.flatten(1).square().sum(1), max_grad_norm), 0.0)
                total[n] += torch.where(keep > 0, each.flatten(1).T * keep, 0.0).sum(1).view(total[n].shape)
        return total

    monkeypatch.setattr(sensitive, "clipped_gradient_sum", fault)


def sampler(fault):
    return lambda monkeypatch: monkeypatch.setattr(passages, "poisson_sample", fault)


def shuffled_epochs(monkeypatch):
    left: dict[int, torch.Tensor] = {}

    def fault(count, rate, generator):
        size = round(count * rate)
        if len(left.get(count, ())) < size:
            left[count] = torch.randperm(count)
        drawn, left[count] = left[count][:size], left[count][size:]
        return drawn.sort().values

    monkeypatch.setattr(passages, "poisson_sample", fault)


def the_same_sample_at_every_step(monkeypatch):
    kept: dict[tuple, torch.Tensor] = {}
    monkeypatch.setattr(
        passages, "poisson_sample", lambda *a: kept.setdefault(a[:2], ORIGINAL_SAMPLE(*a))
    )  # fmt: skip


def dropped_records_shift_the_others(monkeypatch):
    """Unreadable records are left out of their batch, and with them their draws."""
    original = PrivateRecords._batches_of_images

    def fault(self, indices, size, device):
        for images, labels, counted, units in original(self, indices, len(self.images), device):
            if counted.any():
                yield images[counted], None if labels is None else labels[counted], counted[counted], units

    monkeypatch.setattr(PrivateRecords, "_batches_of_images", fault)


def another_row_in_the_ledger(change):
    original = PrivacyLedger.take_step
    return lambda monkeypatch: monkeypatch.setattr(
        PrivacyLedger, "take_step",
        lambda self, row, **more: original(self, replace(row, mechanism=change(row.mechanism)), **more),
    )  # fmt: skip


STD = "noise: standard deviation"
LARGEST = "clipping: largest contribution to a step, in C"
SMALLEST = "clipping: smallest contribution to a step, in C"
WORST = "sensitivity: largest over the settings, in C"
CHECKED = ("sensitivity", "noise at the door")  # the others are of runs
FAULTS = {
    "noise 4 % too small": (noise_of_another_size(lambda std: 0.96 * std), STD),
    "noise per physical batch": (noise_per_physical_batch, STD),
    "noise reused": (noise_reused_at_every_step, "noise: correlation of answers"),
    "noise reused now and then": (noise_reused_now_and_then, "noise: largest correlation of any two steps"),
    "one noise for all tensors": (same_noise_for_every_tensor, "noise at the door: correlation"),
    "one noise for all coordinates": (
        noise_of(lambda t, std, generator: generator.normal((), std)), "noise: correlation of neighbours",
    ),
    "uniform noise": (uniform_noise, "noise: normal shape (Kolmogorov-Smirnov)"),
    "noise from the public seed": (
        noise_of(lambda t, std, generator: torch.randn(t.shape) * std * getattr(generator, "noise_scale", 1.0)),
        "noise at the door: correlation of answers",
    ),
    "noise that the audit cannot turn off": (
        noise_of(lambda t, std, generator: torch.randn(t.shape) * std), "was not rejected",
    ),
    "no noise on an empty sample": (no_noise_on_an_empty_sample, "noise at the door: standard deviation"),
    "no noise on biases": (no_noise_on_biases, "noise at the door: standard deviation of 1.bias"),
    "mean instead of sum": (mean_instead_of_sum, "sensitivity: least over the settings"),
    "divided by the sample's size": (divided_by_the_size_of_the_sample, STD),
    "tiled rows": (tiled_rows, WORST),
    "clipped to 2 C": (factors(lambda norms, c: ORIGINAL_FACTORS(norms, 2 * c)), WORST),
    "no guard against NaN": (factors(lambda norms, c: c / norms.sqrt().clamp_min(c)), WORST),
    "clipped tensor by tensor": (clipped_tensor_by_tensor, WORST),
    "q a tenth too large": (sampler(lambda n, q, g: ORIGINAL_SAMPLE(n, min(1.0, 1.1 * q), g)), "sampler: rate"),
    "shuffled epochs": (shuffled_epochs, "sampler: dispersion of records' counts"),
    "batches of one size": (
        sampler(lambda n, q, g: torch.randperm(n)[: round(n * q)].sort().values), "sampler: dispersion of batch sizes",
    ),
    "one sample for all steps": (the_same_sample_at_every_step, "sampler: dispersion of records' counts"),
    "drawn with replacement": (
        sampler(lambda n, q, g: torch.randint(n, (len(ORIGINAL_SAMPLE(n, q, g)),)).sort().values),
        "sampler: records drawn twice in a step",
    ),
    "dropped records shift the others": (dropped_records_shift_the_others, WORST),
    "ledger: more noise than there is": (
        another_row_in_the_ledger(lambda asked: asked.with_noise(2 * asked.noise_multiplier)),
        "ledger: facts that differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("plant", "caught_by"), few(FAULTS.values(), 0, 6, 15, 18, 23), ids=FAULTS)
def test_planted_faults_are_caught(plant, caught_by, monkeypatch):
    runs, checks = honest()
    plant(monkeypatch)
    found = audit(runs, checks_of()) if caught_by.startswith(CHECKED) else audit(runs_of(), checks)
    assert found.verdict == "INCONCLUSIVE"
    assert any(caught_by in reason for reason in found.reasons), found.reasons


def test_contributions_are_seen_where_the_noise_is_off(monkeypatch):
    """A mean in place of a sum, and rows that are tiled, show in what a canary adds to a step."""
    for plant, name in ((mean_instead_of_sum, SMALLEST), (tiled_rows, LARGEST)):
        with monkeypatch.context() as context:
            plant(context)
            honest, off, halved = stand_in_runs(STEP, DELTA, quick=True)
            assert name in off.faults
            # Even where all else passes, it decides the verdict.
            found = audit([replace(honest, checks=[], gaussian_estimate=0, formal_p_value=1.0), off, halved], [])
            assert found.verdict == "INCONCLUSIVE" and f"dp_sgd (noise off): {name}" in found.reasons


def test_a_broken_run_is_rejected_by_its_noise_or_not_at_all():
    """What fails for another reason does not show that broken noise would be noticed."""
    runs = honest()[0]
    assert audit(runs, []).verdict == "VALID"
    deaf = replace(runs[1], checks=[exact_check("clipping: x", 2.0, 1.0), exact_check("noise: x", 1.0, 1.0)])
    reasons = audit([runs[0], deaf, runs[2]], []).reasons
    assert reasons == ["dp_sgd (noise off): clipping: x", "dp_sgd: the run with the noise off was not rejected"]
    assert Audit("mechanism", {}, {}, [], 0.0).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("per_unit", [1, 2, 5])
def test_units_of_several_images_are_probed_as_units(per_unit, monkeypatch):
    """Clipped image by image, a unit would move the sum by the number of its images."""
    asked = changed(mechanism=STEP.mechanism.at(max_images_per_unit=per_unit))
    assert all(check.passed for check in sensitivity_checks(asked, thorough=True))
    original = PrivateRecords._batches_of_units

    def fault(self, *arguments):
        for images, labels, counted, _ in original(self, *arguments):
            yield images, labels, counted, torch.arange(len(images))

    monkeypatch.setattr(PrivateRecords, "_batches_of_units", fault)
    found = sensitivity_checks(asked, thorough=True)[0]
    assert found.passed == (per_unit == 1)


# One-shot queries.

CLASSES = ("a", "b", "c")
SHAPE = (1, 8, 8)


def make_query(kind, sigma=3.7306, rate=0.5):
    if kind == "central":
        query = MeanImages(image_shape=SHAPE, sample_rate=rate)
    elif kind == "mode":
        query = ModeImages(image_shape=SHAPE, num_bins=2, sample_rate=rate)
    else:
        query = FrequencyFeatures(feature_map=RandomFourierFeatures(SHAPE, 40, 10.0, 0))
    return QueryTarget(query, LedgerRow(query.name, query.mechanism(sigma)), SHAPE, CLASSES)


def query_audit(kind, draws=200, **arguments):
    runs = target_runs(make_query(kind, **arguments), delta=1e-5, draws=draws)
    return Audit("mechanism", {}, {kind: runs}, [], 0.0)


@pytest.mark.parametrize("kind", ["central", "mode", "frequency"])
@pytest.mark.parametrize("rate", few([0.1, 1.0]))
def test_honest_queries_pass(kind, rate):
    found = query_audit(kind, rate=rate)
    assert found.verdict == "VALID", found.reasons


@pytest.mark.parametrize("rate", few([0.1, 1.0]))
def test_of_long_answers_a_few_are_held(rate, monkeypatch):
    """Those of DP-NTK have millions of values. Broken noise shows in them all the same."""
    target, held = make_query("frequency", rate=rate), []
    answers = target.answers
    monkeypatch.setattr(target, "answers", lambda *asked: held.append(asked) or answers(*asked))
    monkeypatch.setattr(targets, "MOST_HELD", 1)
    honest, *broken = target_runs(target, delta=1e-5, draws=200)
    assert not honest.failures and all(one.noise_noticed for one in broken)
    assert max(count for _, _, count in held) == 2 and len(held) < 110


@pytest.mark.slow
def test_the_estimate_of_a_query_is_tight():
    """Claimed epsilon 1: a good part of it is found."""
    honest, _, halved = target_runs(make_query("frequency"), delta=1e-5, draws=4000)
    assert honest.claimed_epsilon == pytest.approx(1.0, abs=1e-3)
    assert 0.25 < honest.gaussian_estimate < 1.0 and not honest.failures
    assert halved.failures


def query_noise_halved(monkeypatch):
    original = PrivateGenerator.normal
    monkeypatch.setattr(PrivateGenerator, "normal", lambda self, shape, std, *a: original(self, shape, std / 2, *a))


def one_noise_for_all_classes(monkeypatch):
    original = PrivateGenerator.normal

    def fault(self, shape, std, *rest):
        return (
            original(self, shape, std, *rest)
            if len(shape) < 2
            else original(self, shape[1:], std, *rest).expand(shape)
        )

    monkeypatch.setattr(PrivateGenerator, "normal", fault)


def unclipped(monkeypatch):
    monkeypatch.setattr(sensitive, "_clip", lambda features, norm: features)


def in_every_class(monkeypatch):
    original = torch.Tensor.index_add_
    monkeypatch.setattr(
        torch.Tensor, "index_add_",
        lambda self, dim, index, source: original(self, dim, torch.arange(len(self)), source.sum(0).expand_as(self)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "plant", "caught_by"),
    [
        ("central", query_noise_halved, "standard deviation of classes and values"),
        ("frequency", one_noise_for_all_classes, "correlation of neighbours along axis 0"),
        ("central", unclipped, "what one unit moves"),
        ("mode", in_every_class, "contribution to other classes"),
        ("central", sampler(lambda n, q, g: torch.arange(n)), "mean with the record"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_planted_faults_of_queries_are_caught(kind, plant, caught_by, monkeypatch):
    plant(monkeypatch)
    found = query_audit(kind, rate=0.5, sigma=1.0, draws=400)
    assert found.verdict == "INCONCLUSIVE"
    assert any(caught_by in reason for reason in found.reasons), found.reasons


# Tags.


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 4), (1, 2, 4)])
def test_tags_survive_the_door(shape):
    numbers = np.array([0, 1, 255, 256, 65_537, 2**31 - 1])
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), dtype=np.uint8)
    tag_images(images, numbers)
    rows = torch.from_numpy(images).float() / 127.5 - 1
    assert read_tags(rows).tolist() == numbers.tolist()
    blank = torch.zeros(2, *shape) - 1
    assert read_tags(blank).tolist() == [-1, -1]
