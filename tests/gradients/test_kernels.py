# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every way of the table gives the same gradients, and the choice between them looks at shapes and clocks alone."""

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.gradients import clipped_gradient_sum, tune, tuning
from diffusers_dp.gradients.kernels import CONVOLUTION, GROUP_NORM, KERNELS, LINEAR, POINTWISE, Geometry
from diffusers_dp.mechanisms import sampled
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import gradient, make_door
from support.exactness import check, collect, squares


LAYERS = {  # kind: layers with the shape of a row
    LINEAR: [(nn.Linear(5, 7), (4, 5)), (nn.Linear(5, 7, bias=False), (5,))],
    POINTWISE: [(nn.Conv2d(5, 3, 1), (5, 4, 4)), (nn.Conv1d(5, 3, 1), (5, 6))],
    CONVOLUTION: [
        (nn.Conv2d(3, 5, 3, padding=1), (3, 6, 5)),
        (nn.Conv2d(3, 1, (2, 3), padding=(0, 2), dilation=(2, 1)), (3, 6, 5)),
        (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 7, 6)),
        (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 6, 5)),
        (nn.Conv1d(3, 4, 3, padding=2, dilation=2), (3, 9)),
    ],
    GROUP_NORM: [(nn.GroupNorm(2, 6), (6, 4, 3)), (nn.GroupNorm(3, 6), (6, 5))],
}
EVERY = [(kind, way) for kind, ways in KERNELS.items() for way in ways]


@pytest.fixture(autouse=True)
def tuned_anew(monkeypatch):
    monkeypatch.setattr(tuning, "_chosen", {})
    yield
    tune(True)


@pytest.mark.parametrize(("images", "group_size"), [(5, 1), (5, 3), (66, 1)])
@pytest.mark.parametrize(("kind", "way"), EVERY, ids=lambda value: getattr(value, "name", value))
def test_every_way_gives_the_gradients_of_autograd(kind, way, images, group_size, monkeypatch):
    served = []

    def counted(*inputs):
        served.append(way.gradient(*inputs))
        return served[-1]

    monkeypatch.setitem(KERNELS, kind, (tuning.Kernel(way.name, counted),))
    tested = 0
    for layer, shape in LAYERS[kind]:
        rows = torch.randn(images * group_size, *shape, generator=torch.Generator().manual_seed(0))
        for layout in (rows, rows.transpose(1, -1).contiguous().transpose(1, -1)):  # as behind attention
            if fits(way, layer, layout, group_size):
                check(
                    nn.Sequential(layer),
                    lambda at, rows=layout, layer=layer: squares(layer(rows[at])),
                    images,
                    group_size,
                )
                tested += 1
    assert tested == len(served) and (tested or group_size > 1)


def fits(way, layer, rows, group_size):
    tokens = rows.reshape(len(rows), -1, rows.shape[-1]) if isinstance(layer, nn.Linear) else rows
    stride = getattr(layer, "stride", (1, 1))
    geometry = Geometry(
        tuple(layer.weight.shape), (1,) * (2 - len(stride)) + stride, groups=getattr(layer, "groups", 1)
    )
    return way.fits(geometry, tokens, tokens, group_size)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))


def gradients_of(rows, model, group_size=2):
    return collect(model, lambda at: squares(model(rows[at])), len(rows), group_size).per_example


def test_ways_are_timed_once_for_a_shape_and_on_no_image(monkeypatch):
    """Whatever the images are, the same numbers are timed, and generators are left alone."""
    timed, real = [], tuning._seconds

    def watched(way, geometry, x, grad, group_size):
        timed.append((way.name, geometry, x, grad))
        return real(way, geometry, x, grad, group_size)

    monkeypatch.setattr(tuning, "_seconds", watched)
    model, seen = net(), []
    for scale in (1.0, 1e3):
        tuning._chosen.clear()
        timed.clear()
        rows = torch.full((6, 1, 4, 4), scale)
        states = torch.get_rng_state(), np.random.get_state()[1].copy()
        gradients_of(rows, model)
        assert torch.equal(torch.get_rng_state(), states[0]) and (np.random.get_state()[1] == states[1]).all()
        seen.append({(name, geometry): inputs for name, geometry, *inputs in timed})
        often = len(timed)
        gradients_of(rows[:4], model)  # fewer images are no other shape
        assert len(timed) == often > 0
        gradients_of(torch.zeros(8, 1, 4, 4), model, group_size=4)
        assert len(timed) > often
    first, second = seen
    for key in first.keys() & second.keys():
        assert all(torch.equal(a, b) for a, b in zip(first[key], second[key], strict=True)), key
    assert len({geometry for _, geometry in first}) == 3


@pytest.mark.parametrize("name", [way.name for way in KERNELS[CONVOLUTION]])
def test_the_quickest_way_for_an_image_serves(name, monkeypatch):
    monkeypatch.setattr(tuning, "_seconds", lambda way, *rest: way.images * (1.0 if way.name == name else 1.5) / 1e4)
    geometry, rows = Geometry((2, 1, 3, 3), padding=(1, 1)), torch.zeros(2, 1, 4, 4)
    assert tuning.chosen_kernel(CONVOLUTION, geometry, rows, rows.expand(2, 2, 4, 4), 1).name == name


def test_nothing_is_timed_when_tuning_is_off(monkeypatch):
    monkeypatch.setattr(tuning, "_seconds", None)
    tune(False)
    gradients_of(torch.ones(4, 1, 4, 4), net())
    assert tuning._chosen == {}


def test_a_step_never_waits_for_the_device():
    """Tensors without storage have no value that could be looked at: `bool`, `item`, a shape that depends on values
    or a copy to the CPU raises."""
    model = net().to("meta")

    def loss(model, rows, labels, generator):
        return squares(model(rows + generator.normal(rows.shape, 1.0, rows.device)))

    images, counted = torch.zeros(4, 1, 4, 4, device="meta"), torch.ones(4, dtype=torch.bool, device="meta")
    for units in (None, torch.tensor([0, 0, 1, 2])):
        total = clipped_gradient_sum(
            model, loss, [(images, None, counted, units)] * 2,
            max_grad_norm=1.0, noise_multiplicity=2, generator=PrivateGenerator(),
        )  # fmt: skip
        assert {name: part.shape for name, part in total.items()} == {n: p.shape for n, p in model.named_parameters()}


def test_nor_does_the_door():
    """All of it, from the sample to the noisy gradient."""
    door = make_door(device="meta")
    noisy = gradient(door, nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).to("meta"), mechanism=sampled(0.5, 2.0))
    assert noisy["1.weight"].shape == (2, 64)
