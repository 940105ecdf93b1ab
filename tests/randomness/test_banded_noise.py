# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Correlated noise is C^-1 z, block by block, and nobody can take its memory away."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.randomness.banded_noise import BandedNoise
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.bands import Noting, bands_of, matrix


SHAPES = [torch.Size([3, 2]), torch.Size([5])]
MANY = settings(max_examples=40, deadline=None, derandomize=True)


def draw(noise, positions, coefficients, generator, shapes=SHAPES, std=2.0):
    """The noise of steps, as rows of numbers."""
    rows = []
    for position in positions:
        drawn = noise.step(position, coefficients, std, [torch.zeros(shape) for shape in shapes], generator)
        rows.append(torch.cat([part.flatten() for part in drawn]))
    return torch.stack(rows).double().numpy()


def fresh(generator, shapes=SHAPES):
    """What the generator drew, step by step."""
    drawn = [part.flatten() for part in generator.drawn]
    steps = [drawn[start : start + len(shapes)] for start in range(0, len(drawn), len(shapes))]
    return torch.stack([torch.cat(step) for step in steps]).double().numpy()


@pytest.mark.parametrize("count", [2, 4, 16])
def test_the_noise_is_that_of_the_matrix(count):
    """C times what was given out is what was drawn: fresh noise of the stated size, and nothing else."""
    coefficients, generator = bands_of(count).coefficients, Noting(bytes(16))
    given_out = draw(BandedNoise(), range(40), coefficients, generator)
    assert np.allclose(matrix(coefficients, [40]) @ given_out, fresh(generator), atol=1e-5)
    assert len(generator.drawn) == 80, "each tensor's noise is drawn once a step"


@MANY
@given(
    st.integers(2, 6), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)  # fmt: skip
def test_whatever_is_lost_a_group_meets_orthogonal_columns(count, stretches, restarts):
    """Steps that are lost, and new processes: the matrix is block diagonal, and the columns of one group's turns have
    disjoint support and norm 1 at most."""
    coefficients, generator = bands_of(count).coefficients, Noting(bytes(16))
    noise, position, positions, given_out, lengths = BandedNoise(), 0, [], [], []
    for (length, lost), restarted in zip(stretches, restarts):
        noise = BandedNoise() if restarted else noise
        given_out.append(draw(noise, range(position, position + length), coefficients, generator))
        positions += range(position, position + length)
        lengths.append(length)
        position += length + lost
    c = matrix(coefficients, lengths)
    assert np.allclose(c @ np.concatenate(given_out), fresh(generator), atol=1e-4)
    for group in range(count):
        columns = c[:, [place for place, position in enumerate(positions) if position % count == group]]
        assert columns.shape[1] <= bands_of(count).turns(position)
        assert (np.count_nonzero(columns, axis=1) <= 1).all() and (np.square(columns).sum(0) <= 1 + 1e-9).all()


def test_steps_that_follow_each_other_are_one_block():
    """Else the noise would never cancel: its sum over 64 steps is far smaller than that of independent noise."""
    coefficients = bands_of(16).coefficients
    total = draw(BandedNoise(), range(64), coefficients, PrivateGenerator(bytes(16)), [torch.Size([4000])], 1.0).sum(0)
    column_sums = np.linalg.solve(matrix(coefficients, [64]).T, np.ones(64))
    assert total.std() == pytest.approx(np.linalg.norm(column_sums), rel=0.05)
    assert total.std() < 0.5 * 64**0.5


@pytest.mark.parametrize("change", ["std", "coefficients", "shapes", "order"])
def test_another_mechanism_is_another_block(change):
    first, other = bands_of(4).coefficients, bands_of(3).coefficients
    noise, generator = BandedNoise(), Noting(bytes(16))
    draw(noise, range(3), first, generator)
    generator.drawn.clear()
    position, std, shapes = 3, 2.0, SHAPES
    if change == "std":
        std = 3.0
    elif change == "shapes":
        shapes = [torch.Size([3, 2]), torch.Size([6])]
    elif change == "order":
        position = 2
    coefficients = other if change == "coefficients" else first
    (given_out,) = draw(noise, [position], coefficients, generator, shapes, std)
    assert np.allclose(coefficients[0] * given_out, fresh(generator, shapes), atol=1e-5)


def test_a_step_that_breaks_off_is_followed_by_a_new_block():
    coefficients, noise, generator = bands_of(4).coefficients, BandedNoise(), Noting(bytes(16))
    draw(noise, range(3), coefficients, generator)
    with pytest.raises(AttributeError):
        noise.step(3, coefficients, 2.0, [torch.zeros(3, 2), None], generator)
    generator.drawn.clear()
    (given_out,) = draw(noise, [4], coefficients, generator)
    assert np.allclose(coefficients[0] * given_out, fresh(generator), atol=1e-5)


def test_memory_is_that_of_the_bands():
    """b - 1 vectors like the model, in float32, however many steps there were."""
    noise = BandedNoise()
    draw(noise, range(20), bands_of(4).coefficients, PrivateGenerator())
    kept = [past for each in noise._past for past in each]
    assert sum(past.numel() for past in kept) == 3 * 11 and {past.dtype for past in kept} == {torch.float32}


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_past_noise_is_never_serialised(take):
    noise = BandedNoise()
    draw(noise, range(3), bands_of(4).coefficients, PrivateGenerator())
    for holder in (noise, {"state": noise}):
        with pytest.raises(TypeError, match="never serialised"):
            take(holder) if take is not copy.copy or holder is noise else take(holder["state"])
