# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A physical batch that does not fit is computed in halves: the same images, each once, under one step of the
ledger."""

import ast

import numpy as np
import pytest
import torch

from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.sensitive import SensitiveImages
from support.doors import NUM_IMAGES, SHAPE, Counting, gradient, make_door, make_ledger, squares, two_layers
from support.places import ROOT
from support.sources import handlers


pytestmark = pytest.mark.usefixtures("watching")


QUERY = sampled(0.7, 2.0)


class Small:
    """A loss for so many rows at once, and what it was asked for."""

    def __init__(self, at_most, error=torch.OutOfMemoryError):
        self.at_most, self.error, self.asked = at_most, error, []

    def __call__(self, model, rows, labels, generator):
        self.asked.append(len(rows))
        if len(rows) > self.at_most:
            raise self.error("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return squares(model, rows, labels, generator)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("at_most", [1, 2, 5, 11])
def test_the_sample_the_step_and_the_noise_are_those_of_the_step(at_most, error):
    """Drawn once and counted once; the sum is that of the whole."""
    expected = gradient(make_door(), two_layers(), mechanism=QUERY, generator=Counting(), max_physical_batch_size=100)
    generator, loss, ledger = Counting(), Small(at_most, error), make_ledger()
    noisy = gradient(
        make_door(),
        two_layers(),
        loss,
        mechanism=QUERY,
        generator=generator,
        max_physical_batch_size=100,
        ledger=ledger,
    )
    for name, value in expected.items():
        torch.testing.assert_close(noisy[name], value, rtol=1e-5, atol=1e-7)
    assert generator.uniforms == [NUM_IMAGES] and generator.normals == [((100, 64), 0.2), ((100, 100), 0.2)]
    assert [row["steps_executed"] for row in ledger.rows] == [1]
    assert max(loss.asked) > at_most or at_most == 11


def test_a_single_image_that_does_not_fit_ends_the_run():
    with pytest.raises(torch.OutOfMemoryError):
        gradient(make_door(), two_layers(), Small(0))


def test_other_errors_are_not_tried_again():
    def broken(*_):
        calls.append(1)
        raise RuntimeError("expected scalar type Float but found Half")

    calls = []
    with pytest.raises(RuntimeError, match="scalar type"):
        gradient(make_door(), two_layers(), broken)
    assert len(calls) == 1
    assert list(handlers(ROOT / "diffusers_dp" / "gradients" / "out_of_memory.py")) == [("RuntimeError", False)]


def test_units_stay_whole():
    """Halves are of units, each with all its images, and numbered anew."""
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, *SHAPE), dtype=np.uint8)
    units = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 5])

    def noisy(loss):
        door = SensitiveImages(
            images, units=units, num_units=6, num_images=NUM_IMAGES, image_shape=SHAPE, ledger=make_ledger(6)
        )
        return gradient(door, two_layers(), loss, generator=Counting(), max_physical_batch_size=100)

    expected, loss = noisy(squares), Small(5)
    for name, value in noisy(loss).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)
    assert loss.asked[0] == NUM_IMAGES and sum(asked for asked in loss.asked if asked <= 5) == NUM_IMAGES


def test_what_the_loss_draws_is_drawn_anew():
    """A generator is never set back: of two attempts the second has other draws."""
    seen = []

    def drawing(model, rows, labels, generator):
        seen.append(generator.normal((len(rows),), 1.0))
        if len(rows) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return squares(model, rows, labels, generator)

    gradient(make_door(), two_layers(), drawing, max_physical_batch_size=100)
    assert [len(draws) for draws in seen] == [12, 6, 6]
    assert len(torch.cat(seen).unique()) == 24
    source = ast.parse((ROOT / "diffusers_dp" / "gradients" / "out_of_memory.py").read_text())
    assert not any(isinstance(node, ast.Attribute) and "state" in node.attr for node in ast.walk(source))
