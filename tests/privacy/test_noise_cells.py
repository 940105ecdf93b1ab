# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Noise is tested for each way to ask the door, not for each function: images and units, for
a step, a query and the query about a finished model. (`test_processes.py` has the same of
several processes.)

No image can be read, so that what comes out is noise, from the real generator.
"""

import contextlib
import math
import time

import numpy as np
import pytest
import torch

from diffusers_dp.distributed.processes import Processes
from diffusers_dp.privacy import sensitive
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.noise_queries import NOISE_CELLS, noise_of, p_values


SIGNIFICANCE = 1e-10  # of each of some thousand p-values: honest noise fails one run of a million


def rejected(answers, std):
    return [name for name, p in p_values(answers, std).items() if p < SIGNIFICANCE]


@pytest.mark.parametrize("cell", NOISE_CELLS, ids=" ".join)
def test_noise_of_every_way_to_ask(cell):
    """Every parameter of a UNet, every class and repeat: the declared standard deviation to 2 %, all of it white."""
    answers, std = noise_of(cell, Processes())
    assert not rejected(answers, std)
    values = torch.cat([part.flatten() for answer in answers for part in answer.values()]).double() / std
    assert len(values) > 60_000  # a standard deviation 3 % too small would be ten of its own errors away
    assert values.std().item() == pytest.approx(1.0, abs=6.5 / math.sqrt(2 * len(values)))


SHAPES = {"kernel": (16, 8, 3, 3), "bias": (40,), "table": (30, 16)}


def steps(number=4, **tensors):
    """Made-up noise of several steps, with some tensors in the place of honest ones."""
    rng = torch.Generator().manual_seed(0)
    return [
        {
            name: tensors.get(name, lambda i, honest: honest)(i, torch.randn(shape, generator=rng))
            for name, shape in SHAPES.items()
        }
        for i in range(number)
    ]


ONE = torch.randn(30, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"table": lambda i, z: z * 0.8}, "standard deviation of table"),
        ({"table": lambda i, z: z * math.nan}, "standard deviation of table"),
        (
            {"kernel": lambda i, z: z[..., :1, :1].expand(SHAPES["kernel"])},
            "correlation of neighbours along axis 2 of kernel",
        ),
        (
            {"kernel": lambda i, z: z[:, :1].expand(SHAPES["kernel"])},
            "correlation of neighbours along axis 1 of kernel",
        ),
        ({"table": lambda i, z: ONE}, "correlation of answers, table"),
        ({"bias": lambda i, z: z[:1].expand(40)}, "correlation of neighbours along axis 0 of bias"),
        ({"kernel": lambda i, z: torch.arange(1152.0).view(SHAPES["kernel"]).sin() * 2**0.5}, "correlation"),
    ],
)  # fmt: skip
def test_what_is_not_white_is_rejected(fault, named):
    assert not rejected(steps(), 1.0)
    assert any(name.startswith(named) for name in rejected(steps(**fault), 1.0))


# The source.


def test_noise_and_samples_are_one_stream():
    """Two streams under one key would be the same numbers twice: whoever saw the one could tell the other."""
    key = bytes(range(16))
    alone, after = PrivateGenerator(key), PrivateGenerator(key)
    after.normal((1000,), 1.0)
    assert not np.isin(alone.uniform(100), after.uniform(100)).any()
    alone, after = PrivateGenerator(key), PrivateGenerator(key)
    after.uniform(1000)
    assert not torch.isin(alone.normal((100,), 1.0), after.normal((100,), 1.0)).any()


def test_the_key_is_the_entropy_of_the_operating_system_and_nothing_else(monkeypatch):
    """Not the clock, which tells many bits of itself."""
    wanted = PrivateGenerator(bytes(range(16))).uniform(50)
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    for moment in (0, 10**9):
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        assert np.array_equal(PrivateGenerator().uniform(50), wanted)


def test_noise_on_cuda_has_the_stated_standard_deviation_and_shape(monkeypatch):
    """A stand-in for the card draws ones: what comes back is the standard deviation itself. Its seed is the operating
    system's entropy."""
    asked, seeds = [], []

    class Card:
        def __init__(self, device):
            assert device.type == "cuda"

        def manual_seed(self, seed):
            seeds.append(seed)
            return self

    def randn(shape, generator, device):
        asked.append((tuple(shape), type(generator), device.type))
        return torch.ones(shape)

    monkeypatch.setattr(torch, "Generator", Card)
    monkeypatch.setattr(torch, "randn", randn)
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    assert PrivateGenerator().normal((3, 2), 0.7, "cuda").tolist() == torch.full((3, 2), 0.7).tolist()
    assert asked == [((3, 2), Card, "cuda")] and seeds == [int.from_bytes(bytes(range(8)), "little")]


def test_torch_s_own_draws_of_a_loss_follow_the_entropy_of_the_operating_system(monkeypatch):
    wanted = torch.rand(5, generator=torch.Generator().manual_seed(int.from_bytes(bytes(range(8)), "little")))
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    with sensitive._secret_torch_draws(torch.device("cpu")):
        assert torch.equal(torch.rand(5), wanted)


def test_torch_s_own_draws_on_a_card_are_secret_and_leave_its_state_alone(monkeypatch):
    """No card is here: the arguments say which generators are put back and which are seeded."""
    asked, here = [], torch.manual_seed
    card = torch.device("cuda")

    @contextlib.contextmanager
    def fork_rng(devices):
        asked.append(("put back", devices))
        yield
        asked.append(("put back", "done"))

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: asked.append(("seeded", seed)) or here(seed))
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    with sensitive._secret_torch_draws(card):
        asked.append("draws")
    seed = int.from_bytes(bytes(range(8)), "little")
    assert asked == [("put back", [card]), ("seeded", seed), "draws", ("put back", "done")]
