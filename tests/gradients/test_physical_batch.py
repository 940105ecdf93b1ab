# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The largest physical batch, by measured memory: no allocation has to fail for it."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.gradients import physical_batch
from diffusers_dp.gradients.physical_batch import largest_physical_batch
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
    monkeypatch.setattr(physical_batch, "free_bytes", lambda device: megabytes * 1e6 / physical_batch.USABLE["cpu"])
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


@given(
    constant=st.integers(0, 10**6), each=st.integers(1, 10**4), usable=st.integers(0, 10**7),
    at_most=st.integers(1, 3000), measured=st.sampled_from([2, 256]),
)  # fmt: skip
@settings(max_examples=200, deadline=None, derandomize=True)
def test_nothing_is_tried_that_would_not_fit_and_little_is_left(constant, each, usable, at_most, measured):
    """Of memory that grows evenly; one image is taken in any case."""
    asked = []

    def peak(images):
        asked.append(images)
        return constant + each * images

    found = physical_batch.largest_by_growth(peak, usable, at_most, measured)
    best = min(at_most, (usable - constant) // each)
    assert 1 <= found <= max(1, best) and max(asked) <= max(2, min(measured, at_most)) and len(asked) < 20
    assert all(images == 1 or constant + each * images <= usable for images in asked)
    if 2 * (constant + each) <= usable:
        assert found == max(1, best)


def test_workspaces_that_grow_with_the_batch_are_found():
    """Two images say that 100 fit, and so do 32; from there on each takes more."""
    usable, asked = 1000, []

    def peak(images):
        asked.append(images)
        return 10 * images + 15 * max(0, images - 32)

    found = physical_batch.largest_by_growth(peak, usable, 10**6, 256)
    assert peak(found) <= usable < peak(found + 2) and max(asked[:-2]) == 64
    assert peak(physical_batch.largest_by_growth(peak, usable, 10**6, 2)) > usable


@pytest.mark.parametrize("megabytes", [0, 40, 10**6])
def test_a_gpu_keeps_room_for_the_optimizer_and_is_not_shared(megabytes, monkeypatch):
    """The rule of a card, with the memory of this machine."""
    model, emptied = denoiser(), []
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    of_cpu, step = physical_batch.peak_bytes, physical_batch.blank_step
    monkeypatch.setattr(physical_batch, "blank_step", lambda *args, **kw: step(*args, **{**kw, "device": CPU}))
    monkeypatch.setattr(physical_batch, "peak_bytes", lambda call, device: of_cpu(call, CPU))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    monkeypatch.setattr(physical_batch, "free_bytes", lambda device: megabytes * 1e6)
    found = largest_physical_batch(model, EDMLoss(), at_most=8, device="cuda", processes_here=4, **ARGUMENTS)
    usable = physical_batch.USABLE["cuda"] * megabytes * 1e6 - physical_batch.RESERVE * weights
    assert emptied and found == {0: 1, 10**6: 8}.get(megabytes, found)
    if megabytes == 40:
        call = functools.partial(step, model, EDMLoss(), found, device=CPU, **ARGUMENTS)
        assert found == 8 or 0.6 * usable < of_cpu(call, CPU) <= 1.1 * usable


def test_nothing_is_held_back_for_frozen_weights(monkeypatch):
    """An adapter's base has neither noise nor moments."""
    model = denoiser()
    for parameter in list(model.parameters())[1:]:
        parameter.requires_grad_(False)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(physical_batch, "blank_step", lambda *_, **__: None)
    monkeypatch.setattr(physical_batch, "peak_bytes", lambda call, device: 1)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(physical_batch, "free_bytes", lambda device: 3 * weights)
    assert largest_physical_batch(model, EDMLoss(), at_most=8, device="cuda", **ARGUMENTS) == 8


def test_a_batch_that_takes_no_more_than_the_one_before_says_nothing():
    assert physical_batch.largest_by_growth(lambda images: 100, 1000, 10**6, 2) == 2 + 900 // 50


def test_memory_that_somebody_took_meanwhile_ends_the_search():
    def peak(images):
        if images > 4:
            raise torch.OutOfMemoryError
        return images

    assert physical_batch.largest_by_growth(peak, 1000, 10**6, 256) == 4
