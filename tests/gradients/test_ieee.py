# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The bound rests on norms, factors and sums of the same tensors, in IEEE float32 or better, and not on what made
them."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from diffusers_dp.gradients import per_example
from diffusers_dp.gradients.parts import ieee_float32
from diffusers_dp.gradients.step import clipped_gradient_sum
from diffusers_dp.mechanisms.mechanism import STEPS
from diffusers_dp.randomness.private_generator import PrivateGenerator


MODES = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
CLIP, IMAGES = 0.5, 5
OF_CLIPPING = ("mv", "linalg_vector_norm")


def precisions():
    return tuple(mode.fp32_precision for mode in MODES)


@contextlib.contextmanager
def restored():
    before = precisions()
    for mode in MODES:  # what a run of another test has set
        mode.fp32_precision = "none"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.fp32_precision = "none"
        for mode, precision in zip(MODES, before, strict=True):
            mode.fp32_precision = precision


def by_name(object_, name, value):
    return lambda: setattr(object_, name, value)


WAYS = {  # to let products of matrices be rounded
    "allow_tf32": by_name(torch.backends.cuda.matmul, "allow_tf32", True),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "of CUDA alone": by_name(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "of oneDNN alone": by_name(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "of all": by_name(torch.backends, "fp32_precision", "tf32"),
}


class Observed(TorchDispatchMode):
    """Notes what was allowed while each operation ran."""

    def __init__(self):
        super().__init__()
        self.allowed = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.allowed.setdefault(function.overloadpacket.__name__, set()).add(precisions())
        return function(*args, **(kwargs or {}))


def net():
    """One parameter that is kept by itself and small ones that are kept side by side."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 80), nn.SiLU(), nn.Linear(80, 2))


def loss(model, rows, labels, generator):
    return model(rows).square().sum(1)


def clipped(counted=None, exact=False, multiplicity=1):
    images = torch.rand(IMAGES, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    counted = torch.ones(IMAGES, dtype=torch.bool) if counted is None else counted
    total = clipped_gradient_sum(
        net(), loss, [(images, None, counted, None)], max_grad_norm=CLIP, noise_multiplicity=multiplicity,
        generator=PrivateGenerator(), exact=exact,
    )  # fmt: skip
    return torch.cat([part.flatten().double() for part in total.values()]) * (CLIP / STEPS if exact else 1)


@pytest.mark.parametrize("exact", [False, True], ids=["float", "exact"])
@pytest.mark.parametrize("way", WAYS)
def test_networks_may_be_rounded_and_norms_and_sums_may_not(way, exact):
    with restored():
        WAYS[way]()
        allowed = precisions()
        assert allowed != ("ieee", "ieee")
        with Observed() as observed:
            clipped(exact=exact)
        assert observed.allowed["addmm"] == {allowed}  # of the network, and of its backward pass
        for name in OF_CLIPPING[: 1 if exact else 2]:  # exact norms are float64
            assert observed.allowed[name] == {("ieee", "ieee")}, name
        assert precisions() == allowed


def test_what_was_allowed_comes_back_after_an_error():
    with restored():
        torch.set_float32_matmul_precision("high")
        with pytest.raises(ZeroDivisionError), ieee_float32():
            assert precisions() == ("ieee", "ieee")
            raise ZeroDivisionError
        assert precisions() == ("tf32", "tf32") and torch.backends.cuda.matmul.allow_tf32


def test_what_was_left_to_all_backends_is_left_to_them():
    with restored():
        torch.backends.fp32_precision = "tf32"
        clipped()
        torch.backends.fp32_precision = "ieee"
        assert precisions() == ("ieee", "ieee")


class Slow:
    """A setting whose changes take long: other threads get their turn."""

    def __init__(self, mode):
        self.__dict__["mode"] = mode

    def __getattr__(self, name):
        return getattr(self.mode, name)

    def __setattr__(self, name, value):
        time.sleep(1e-3)
        setattr(self.mode, name, value)
        time.sleep(1e-3)


def test_threads_round_no_sum_of_each_other(monkeypatch):
    """One that leaves lets TF32 in again only when no other is inside."""

    def inside(milliseconds):
        seen = set()
        for _ in range(10):
            time.sleep(1e-3 * milliseconds)
            with ieee_float32():
                for _ in range(4):
                    time.sleep(1e-3)
                    seen.add(precisions())
        return seen

    monkeypatch.setattr("diffusers_dp.gradients.parts._MODES", tuple(Slow(mode) for mode in MODES))
    with restored(), ThreadPoolExecutor(2) as threads:
        torch.set_float32_matmul_precision("high")
        assert set().union(*threads.map(inside, (3, 8))) == {("ieee", "ieee")}
        assert precisions() == ("tf32", "tf32")


POISON = {
    "other numbers": lambda part, noise: noise,
    "huge": lambda part, noise: noise * 1e18,
    "beyond float32": lambda part, noise: noise * 1e30,
    "tiny": lambda part, noise: noise * 1e-30,
    "not a number": lambda part, noise: torch.where(noise > 2.5, float("nan"), noise),
    "infinite": lambda part, noise: torch.where(noise > 2.5, float("inf"), noise),
    "bfloat16": lambda part, noise: (part + noise).bfloat16(),
    "another memory format": lambda part, noise: (noise * 7).transpose(0, -1).contiguous().transpose(0, -1),
    "of the first image": lambda part, noise: (noise[:1] * 3).expand_as(part),
}


@pytest.mark.parametrize("exact", [False, True], ids=["float", "exact"])
@pytest.mark.parametrize("poison", POISON)
def test_whatever_gradients_are_one_image_adds_the_clip_norm_at_most(poison, exact, monkeypatch):
    """A forward or backward pass that is wrong costs quality: the sum over images with and without one of them, of the
    same poisoned gradients, and the sum of one image alone."""
    real = per_example.rule_of

    def poisoned(module):
        def rule(layer, x, grad, group_size):
            return [(p, [bad(part) for part in parts]) for p, parts in real(module)(layer, x, grad, group_size)]

        return rule

    def bad(part):
        return POISON[poison](part, torch.randn(part.shape, generator=draws))

    monkeypatch.setattr(per_example, "rule_of", poisoned)
    answers = []
    everyone = torch.ones(IMAGES, dtype=torch.bool)
    for counted in (everyone, everyone & (torch.arange(IMAGES) != 2), torch.arange(IMAGES) == 2):
        draws = torch.Generator().manual_seed(3)
        answers.append(clipped(counted, exact, multiplicity=2))
    both, without, alone = answers
    assert all(answer.isfinite().all() for answer in answers)
    assert alone.norm() <= CLIP * (1 + 1e-6) and (both - without).norm() <= CLIP * (1 + 1e-5)
    if poison in ("other numbers", "bfloat16", "another memory format"):
        assert alone.norm() > 0.99 * CLIP  # it was clipped
