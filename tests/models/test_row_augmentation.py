# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flips and crops of the K draws: what they do, that each row keeps to its own image, and that the gradient's bound
stays."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp.gradients.step import clipped_gradient_sum
from diffusers_dp.models.denoiser import DDPMLoss, EDMLoss
from diffusers_dp.models.row_augmentation import AugmentedLoss
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.models import MIXTURE, make_ddpm, make_denoiser


KEY = bytes(range(16))
OPERATIONS = [["flip"], ["crop"], ["flip", "crop"]]


def augmented(images, operations, key=KEY):
    return AugmentedLoss(None, operations).augment(images, None if key is None else PrivateGenerator(key))


def possible(image, operations, most):
    """Every image that the operations may make of one, with torch's own flip and padding."""
    flips = [image, image.flip(-1)] if "flip" in operations else [image]
    if "crop" not in operations:
        return flips
    size, found = image.shape[-1], []
    for flipped in flips:
        padded = F.pad(flipped[None], [most] * 4, mode="reflect")[0]
        steps = range(2 * most + 1)
        found += [padded[:, y : y + size, x : x + size] for y in steps for x in steps]
    return found


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize(("size", "most"), [(4, 1), (8, 1), (16, 2)])
@pytest.mark.parametrize("operations", OPERATIONS)
def test_each_row_is_one_of_what_its_image_can_become(operations, size, most, key):
    """All of them come up, about equally often, and nothing else; K rows of an image differ."""
    torch.manual_seed(0)
    image, rows = torch.rand(2, size, size), 3000
    options = torch.stack(possible(image, operations, most))
    found = augmented(image.expand(rows, -1, -1, -1), operations, key)
    assert found.shape == (rows, 2, size, size) and found.is_contiguous()
    which = (found[:, None] == options).flatten(2).all(2)
    assert which.any(1).all()
    counts = which.sum(0).double()
    assert (counts - rows / len(options)).abs().max() < 5 * (rows / len(options)) ** 0.5


@given(
    rows=st.integers(1, 6),
    other=st.integers(0, 5),
    operations=st.sampled_from(OPERATIONS),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_row_does_not_depend_on_other_rows(rows, other, operations, seed):
    """Bitwise: an augmentation that mixed images would let one move the gradients of others."""
    images = torch.rand(rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    changed = images.clone()
    changed[other % rows] = float("nan")
    before, after = (augmented(x, operations, seed.to_bytes(16, "big")) for x in (images, changed))
    same = torch.tensor([row != other % rows for row in range(rows)])
    assert torch.equal(before[same], after[same]) and after[~same].isnan().all()


def gradient_sum(loss, denoiser, images, counted, noise_multiplicity=4, max_grad_norm=1e-3):
    labels = torch.arange(len(images)) % 3
    parts = clipped_gradient_sum(
        denoiser, loss, [(images, labels, torch.tensor(counted), None)],
        max_grad_norm=max_grad_norm, noise_multiplicity=noise_multiplicity, generator=PrivateGenerator(KEY),
    )  # fmt: skip
    return torch.cat([part.flatten() for part in parts.values()])


CASES = [
    (make_denoiser, AugmentedLoss(EDMLoss(mixture=MIXTURE), ["flip", "crop"])),
    (make_ddpm, AugmentedLoss(DDPMLoss(mixture=MIXTURE), ["flip", "crop"])),
    (make_ddpm, DDPMLoss()),
]


@pytest.mark.parametrize(("make", "loss"), CASES)
def test_the_gradient_of_an_image_does_not_depend_on_the_others(make, loss):
    """Image 0 counts alone: what lies in the other places changes nothing of its part, bit for bit."""
    denoiser, alone = make(), [True, False, False]
    images = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    others = images.clone()
    others[1], others[2] = 1.0, -images[0]
    parts = [gradient_sum(loss, denoiser, x, alone, max_grad_norm=1e6) for x in (images, others)]
    assert torch.allclose(*parts, rtol=1e-5, atol=1e-8) and parts[0].norm() > 0
