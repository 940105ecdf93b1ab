# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The largest physical batch: measured memory on a CPU, trial on a GPU, and nothing left behind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.gradients import largest_physical_batch, physical_batch
from diffusers_dp.models.denoiser import EDMDenoiser, EDMLoss
from support.models import convolutional_unet


CPU = torch.device("cpu")
ARGUMENTS = {"image_shape": (1, 8, 8), "labelled": True, "noise_multiplicity": 2}


def denoiser():
    return EDMDenoiser(convolutional_unet(block_out_channels=(8, 16), norm_num_groups=4))


def largest(model, at_most=10**6):
    return largest_physical_batch(model, EDMLoss(), at_most=at_most, **ARGUMENTS)


@pytest.mark.parametrize("megabytes", [20, 60])
def test_what_is_chosen_fits_and_uses_what_there_is(megabytes, monkeypatch):
    model = denoiser()
    monkeypatch.setattr(physical_batch, "free_bytes", lambda device: megabytes * 1e6 / physical_batch.USABLE)
    chosen = largest(model)
    peaks = []
    monkeypatch.setattr(physical_batch, "clipped_gradient_sum", _repeated(physical_batch.clipped_gradient_sum, chosen))
    monkeypatch.setattr(physical_batch, "peak_bytes", _recorded(physical_batch.peak_bytes, peaks))
    largest(model)
    # Peaks grow a little faster than from one image to two, by the ways that were fastest; half of memory is left.
    assert 0.7 * megabytes * 1e6 < peaks[0] <= 1.1 * megabytes * 1e6


def test_a_units_images_fit_whatever_memory_there_is(monkeypatch):
    monkeypatch.setattr(physical_batch, "free_bytes", lambda device: 0)
    assert largest(denoiser()) == 1
    assert largest_physical_batch(denoiser(), EDMLoss(), at_most=100, at_least=8, **ARGUMENTS) == 8


def _repeated(function, images):
    """`function` with each physical batch blown up to `images` images."""

    def repeated(model, row_loss, batches, **changes):
        def blown_up(part):
            return None if part is None else part[:1].expand(images, *part.shape[1:]).contiguous()

        bigger = [tuple(map(blown_up, batch)) for batch in batches]
        return function(model, row_loss, bigger, **changes)

    return repeated


def _recorded(function, into):
    def recorded(*arguments):
        into.append(function(*arguments))
        return into[-1]

    return recorded


@given(limit=st.integers(1, 3000), at_most=st.integers(1, 3000))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_trial_finds_the_limit_of_a_gpu_to_an_eighth(limit, at_most):
    tried = []

    def step(images):
        tried.append(images)
        if images > limit:
            raise torch.OutOfMemoryError

    found = physical_batch._largest_that_runs(step, at_most)
    best = min(limit, at_most)
    assert found <= best < found + max(1, found // 8) + 1
    assert found == 1 or found in tried
    assert max(tried, default=1) <= at_most and len(tried) < 20
