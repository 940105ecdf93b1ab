# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whole numbers in the place of clipped vectors: no vector is longer than the sensitivity, and sums are exact."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from diffusers_dp.errors import UsageError
from diffusers_dp.gradients.grid import clip_steps, fits, on_grid, rounded_in_place
from diffusers_dp.gradients.per_example import per_example_gradients
from diffusers_dp.gradients.step import clipped_gradient_sum
from diffusers_dp.mechanisms.mechanism import STEPS
from diffusers_dp.randomness.private_generator import PrivateGenerator


KEY = bytes(range(16))
ALL = torch.ones(5, dtype=torch.bool)
LENGTHS = st.sampled_from([0.0, 1e-30, 1e-6, 0.5, 0.9999, 1.0, 1.0001, 7.0, 1e12, 3e30])


def vectors(lengths, dimension=50, seed=0):
    drawn = torch.randn(len(lengths), dimension, generator=torch.Generator().manual_seed(seed)).double()
    return drawn / drawn.norm(dim=1, keepdim=True) * torch.tensor(lengths)[:, None].double()


def integer_norm(vector):
    return sum(int(value) ** 2 for value in vector.tolist())


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=5),
    parts=st.integers(1, 8),
    clip_norm=st.sampled_from([1e-3, 1, 40]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_vector_of_a_query_is_longer_than_its_share(lengths, parts, clip_norm):
    rows = vectors(lengths) * clip_norm
    found = on_grid(rows, clip_norm, ALL[: len(rows)], torch.full((len(rows),), parts))
    assert torch.equal(found, found.round())
    for vector in found:
        assert integer_norm(vector) * parts**2 <= STEPS**2


@pytest.mark.parametrize("dimension", [1, 900, 35_000])
def test_norms_are_computed_in_one_shape_whatever_the_batch(monkeypatch, dimension):
    """Several threads share the norm of a vector that is alone, or that is not contiguous: other last bits."""
    norm, seen = torch.linalg.vector_norm, set()
    monkeypatch.setattr(
        torch.linalg, "vector_norm", lambda x, **more: seen.add((x.shape, x.stride())) or norm(x, **more)
    )
    for size in (64, 192, 640):
        rows = torch.ones(dimension, size).t()  # column by column in memory
        on_grid(rows, 0.5, torch.ones(size, dtype=torch.bool))
    assert len(seen) == 1 and seen.pop()[1] == (dimension, 1)
    on_grid(torch.ones(7, dimension), 0.5, torch.ones(7, dtype=torch.bool))
    assert len(seen) == 1, "a smaller batch has no rest of another shape"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_does_not_count_or_is_not_finite_is_zero_and_the_rows_stay(dtype):
    rows = vectors([0.5, 0.5, 0.5, 0.5]).to(dtype)
    rows[1, 3], rows[2, 7] = torch.nan, -torch.inf
    before = rows.clone()
    found = on_grid(rows, 1.0, torch.tensor([True, True, True, False]))
    assert found[0].any() and not found[1:].any()
    assert torch.equal(rows.nan_to_num(9.0), before.nan_to_num(9.0)), "features may keep what they return"


def test_a_rounded_vector_that_is_too_long_counts_as_zero(monkeypatch):
    """As if the clip norm had been computed wrongly by a thousandth."""
    monkeypatch.setattr("diffusers_dp.gradients.grid.SLACK", -1e-3)
    monkeypatch.setattr("diffusers_dp.gradients.grid.math.sqrt", lambda value: 0.0)
    assert on_grid(vectors([3.0]), 1.0, ALL[:1]).abs().sum() == 0
    assert on_grid(vectors([0.5]), 1.0, ALL[:1]).abs().sum() > 0


def test_norms_of_whole_numbers_are_exact():
    """One step too long is too long, in parts of a parameter and over several of them. Float32 does not see it."""
    long = torch.zeros(2, 3)
    long[0, 0], long[1, 0] = STEPS, STEPS
    long[1, 1] = 1
    squares = rounded_in_place([long[:1].clone(), long[1:].clone()], torch.ones(2))
    assert squares.tolist() == [STEPS**2, STEPS**2 + 1] and fits(squares).tolist() == [True, False]


def test_too_many_numbers_for_the_grid_are_refused():
    assert clip_steps(161_268) > 0.998 * STEPS
    with pytest.raises(UsageError, match="--noise float"):
        clip_steps(2 * (STEPS // 8) ** 2)


# Gradients.


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.SiLU(), nn.Conv2d(6, 30, 3), nn.SiLU(), nn.Flatten(),
        nn.Linear(30 * 36, 20),
    )  # fmt: skip


def squares(model, rows, labels, generator):
    return model(rows).square().sum(1)


def summed(images, counted=None, size=None, model=None, exact=True, clip_norm=0.1, multiplicity=1):
    counted = torch.ones(len(images), dtype=torch.bool) if counted is None else counted
    size = size or len(images)
    batches = [(x, None, c, None) for x, c in zip(images.split(size), counted.split(size), strict=True) if len(x)]
    return clipped_gradient_sum(
        model or convolutions(), squares, batches, max_grad_norm=clip_norm, noise_multiplicity=multiplicity,
        generator=PrivateGenerator(KEY), exact=exact,
    )  # fmt: skip


def noise(count, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def flat(total):
    return torch.cat([value.flatten() for value in total.values()])


@pytest.mark.parametrize("clip_norm", [1e-6, 0.1, 1e3])
@pytest.mark.parametrize("multiplicity", [1, 3])
def test_one_image_moves_the_sum_by_the_sensitivity_at_most_and_nearly_so(clip_norm, multiplicity):
    images = noise(5)
    for number in range(5):
        alone = flat(summed(images, torch.arange(5) == number, clip_norm=clip_norm, multiplicity=multiplicity))
        assert torch.equal(alone, alone.round()) and alone.dtype == torch.float64
        assert integer_norm(alone) <= STEPS**2
        if clip_norm < 1:
            assert integer_norm(alone) > (0.998 * STEPS) ** 2


def test_sums_are_exact_in_any_order():
    """With 70 images, more than float32 adds up at once."""
    images, counted = noise(70), torch.arange(70) % 3 > 0
    whole = flat(summed(images, counted))
    alone = sum(flat(summed(images, counted & (torch.arange(70) == number))) for number in range(70))
    assert torch.equal(whole, alone)
    assert torch.equal(whole, flat(summed(images, counted & (torch.arange(70) < 41))) + flat(
        summed(images, counted & (torch.arange(70) >= 41))))  # fmt: skip


def test_a_broken_image_and_none_at_all_add_zero():
    images = noise(4)
    images[1] = math.nan
    broken = flat(summed(images))
    assert torch.equal(broken, flat(summed(images, torch.tensor([True, False, True, True]))))
    assert flat(summed(images[:0], size=1)).abs().sum() == 0


def test_a_norm_that_float32_got_wrong_counts_as_zero(monkeypatch):
    """The planted error is larger than the slack: such a vector may not be added."""
    honest = per_example_gradients.squared_norms
    monkeypatch.setattr(per_example_gradients, "squared_norms", lambda self: 0.98 * honest(self))
    assert flat(summed(noise(3))).abs().sum() == 0


def test_the_largest_sum_that_float32_adds_is_exact():
    """64 images that are alike, each of the full length in one weight."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1, bias=False))
    images = torch.zeros(64, 1, 8, 8)
    images[:, 0, 0, 0] = 1.0
    found = flat(summed(images, model=model, clip_norm=1e-3))
    one = flat(summed(images[:1], model=model, clip_norm=1e-3))
    assert torch.equal(found, 64 * one) and np.isclose(one.abs().max(), STEPS, rtol=1e-3)


def test_gradients_in_another_memory_format_are_rounded_in_their_place():
    """Where they are copied to be rounded, what is added up would be neither rounded nor clipped."""
    torch.manual_seed(0)
    model, images = nn.Conv2d(16, 64, 3), torch.rand(3, 16, 5, 5)
    found = []
    for kind in (torch.contiguous_format, torch.channels_last_3d):
        with per_example_gradients(model) as gradients:
            model(images).square().flatten(1).sum(1).sum().backward()
        gradients._sums = {
            name: [part.contiguous(memory_format=kind) for part in parts] for name, parts in gradients._sums.items()
        }
        found.append(gradients.rounded_sum(1e-3, torch.ones(3, dtype=torch.bool)))
    for name, value in found[1].items():
        assert torch.equal(value, value.round()) and torch.equal(value, found[0][name])
