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
from torch import nn

from diffusers_dp.audit import noise
from diffusers_dp.audit.noise import blank_door, cell_checks, cell_name, cells_of, noise_p_values
from diffusers_dp.audit.stand_ins import AuditedModel, stand_in
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy import sensitive
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.audits import STEP
from support.noise_queries import NOISE_CELLS, noise_of


CELLS = cells_of(STEP.mechanism)
SIGNIFICANCE = 1e-10  # of each of some thousand p-values: honest noise fails one run of a million


def rejected(answers, std):
    return [name for name, p in noise_p_values(answers, std).items() if p < SIGNIFICANCE]


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
        ({"table": lambda i, z: z * 0}, "standard deviation of table"),
        ({"table": lambda i, z: z * 0.8}, "standard deviation of table"),
        ({"bias": lambda i, z: z / 4}, "standard deviation of bias"),
        ({"table": lambda i, z: z * math.nan}, "standard deviation of table"),
        ({"table": lambda i, z: z * math.inf}, "standard deviation of table"),
        (
            {"kernel": lambda i, z: z[..., :1, :1].expand(SHAPES["kernel"])},
            "correlation of neighbours along axis 2 of kernel",
        ),
        ({"kernel": lambda i, z: z[:1].expand(SHAPES["kernel"])}, "correlation of neighbours along axis 0 of kernel"),
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


def test_one_noise_for_two_parameters_is_rejected():
    drawn = steps()
    for step in drawn:
        step["table"] = step["kernel"].flatten()[:480].view(30, 16)
        step["bias"] = step["kernel"].flatten()[:40]
    assert {"correlation of kernel and bias", "correlation of bias and table"} <= set(rejected(drawn, 1.0))


# The audit looks at them all, and the pre-flight at the run's own.


def test_the_audit_accepts_honest_noise_in_all_cells():
    assert [check.passed for check in cell_checks(STEP, stand_in(), CELLS)] == [True, True]


@pytest.mark.parametrize("cell", CELLS, ids=cell_name)
def test_the_audit_notices_noise_that_is_too_small_in_one_cell(cell, monkeypatch):
    """Of the door of that cell alone, which shows that the audit asks it."""
    honest = noise.blank_door

    def door(image_shape, class_names, here, *rest):
        made = honest(image_shape, class_names, here, *rest)
        if here == cell:
            made._generator = Quieter()
        return made

    monkeypatch.setattr(noise, "blank_door", door)
    size, _ = cell_checks(STEP, stand_in(), CELLS)
    assert not size.passed and f"({cell_name(cell)})" in size.name


class Quieter(PrivateGenerator):
    def normal(self, shape, std, device="cpu"):
        return super().normal(shape, 0.5 * std, device)

    def rounded_normal(self, shape, std, device="cpu"):
        return super().rounded_normal(shape, 0.5 * std, device)


def test_the_audit_notices_one_draw_for_all_taps_of_a_kernel():
    class Taps(PrivateGenerator):
        def normal(self, shape, std, device="cpu"):
            drawn = super().normal(shape, std, device)
            return drawn[..., :1, :1].expand(shape) if len(shape) == 4 else drawn

    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 1))
    audited = AuditedModel(model, lambda m, rows, labels, generator: m(rows).squeeze(1), (1, 8, 8), None)
    assert all(check.passed for check in cell_checks(STEP, audited, CELLS[:1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "blank_door", quiet(noise.blank_door, Taps))
        _, white = cell_checks(STEP, audited, CELLS[:1])
    assert not white.passed and "neighbours" in white.name


def quiet(honest, source):
    def door(*arguments):
        made = honest(*arguments)
        made._generator = source()
        return made

    return door


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


def test_a_card_that_seeds_itself_is_never_asked_for_less_noise_than_the_door_owes():
    """The door hands the source sigma C, for a query and for a step, of images and of units."""
    asked = []

    class Noting(PrivateGenerator):
        def normal(self, shape, std, device="cpu"):
            asked.append(std)
            return super().normal(shape, std, device)

    for cell in CELLS[:2]:
        door = blank_door((1, 8, 8), ("a", "b"), cell)
        door._generator = Noting()
        door.noisy_sum(lambda x, _: x.flatten(1), sampled(1.0, 3.0, by_label=True), clip_norm=0.5, name="x")
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
        door.noisy_gradient(
            model, lambda m, rows, labels, generator: m(rows).squeeze(1), sampled(1.0, 3.0), max_grad_norm=0.5,
            normaliser=9.0, noise_multiplicity=2, max_physical_batch_size=4,
        )  # fmt: skip
    assert asked == [1.5] * 6
