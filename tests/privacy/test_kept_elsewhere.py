# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""State that a loss keeps in other functions, classes, files and wrappers, or where its sum stays the same."""

import collections
import contextlib
import contextvars
import functools
import sys
import threading
import types

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.errors import UsageError
from support.doors import gradient, make_door, make_ledger, squares, two_layers


HELPERS = types.ModuleType("helpers_of_a_user")
exec(
    """
import torch

BANK = {}
torch.manual_seed(1)
critic = torch.nn.Linear(64, 1)

def remember(rows):
    BANK["mean"] = BANK.get("mean", 0) + rows.sum(0)

class Stats:
    mean = None

    @classmethod
    def update(cls, rows):
        cls.mean = rows.mean(0) if cls.mean is None else 0.9 * cls.mean + 0.1 * rows.mean(0)
""",
    HELPERS.__dict__,
)
sys.modules["helpers_of_a_user"] = HELPERS
remember, Stats, other_file = HELPERS.remember, HELPERS.Stats, HELPERS

CENTRE, KEPT, LONG, LONG_KEYS = {"value": None}, [], [0.0] * 10_001, dict.fromkeys(range(10_001), 0.0)
TUPLES, USER, LOCAL = {("a", 0.0): 1}, collections.UserDict(), threading.local()
VARIABLE = contextvars.ContextVar("variable")
WRITEABLE = np.zeros((3, 3))
READ_ONLY = WRITEABLE.view()
READ_ONLY.flags.writeable = False
STORAGE = torch.UntypedStorage(8)


@torch.no_grad()
def update(rows):
    CENTRE["value"] = rows.mean(0)


@contextlib.contextmanager
def noting(rows):
    KEPT.append(rows)
    yield


@functools.singledispatch
def noted(rows):
    raise TypeError


@noted.register
def _(rows: torch.Tensor):
    KEPT.append(rows)


@functools.lru_cache
def cached(key):
    KEPT.append(key)


class Bank:
    def __setitem__(self, key, value):
        KEPT.append(value)

    def __matmul__(self, value):
        KEPT.append(value)


class Descriptor:
    def __get__(self, instance, owner=None):
        return 0

    def __set__(self, instance, value):
        CENTRE["value"] = value


class Described:
    value = Descriptor()


BANK, DESCRIBED = Bank(), Described()


def in_a_decorated_helper(rows):
    update(rows)


def in_a_function_of_another_file(rows):
    remember(rows)


def in_a_class_of_another_file(rows):
    Stats.update(rows)


def in_a_module(rows):
    other_file.BANK["x"] = rows.mean(0)


def in_a_context_manager(rows):
    with noting(rows):
        pass


def by_type(rows):
    noted(rows)


def in_a_cached_function(rows):
    cached(rows)


def by_an_item(rows):
    BANK["x"] = rows


def by_an_operator(rows):
    BANK @ rows


def by_a_descriptor(rows):
    DESCRIBED.value = rows


def by_the_name_of_a_global(rows):
    globals()["KEPT"].append(rows)


def in_a_key(rows):
    TUPLES.clear()
    TUPLES["a", float(rows.mean())] = 1


def in_a_user_dictionary(rows):
    USER["x"] = rows


def in_a_thread(rows):
    LOCAL.x = rows


def in_a_context(rows):
    VARIABLE.set(rows)


def in_a_long_list(rows):
    LONG[7] += float(rows.mean())


def in_a_long_dictionary(rows):
    LONG_KEYS[7] += float(rows.mean())


def below_a_read_only_view(rows):
    READ_ONLY.base[0, 0] += float(rows.mean())


def in_a_storage(rows):
    STORAGE[0] = (STORAGE[0] + 1) % 256


def in_a_gradient_of_another_network(rows):
    other_file.critic(rows.flatten(1)).sum().backward()


KEEPERS = [value for name, value in list(globals().items()) if name.startswith(("in_a", "by_", "below_"))]


@pytest.mark.parametrize("keep", KEEPERS, ids=lambda keep: keep.__name__)
def test_what_is_kept_elsewhere_is_found(keep):
    """In whatever the loss can reach of the user's own code."""

    def loss(model, rows, labels, generator):
        with torch.enable_grad():
            keep(rows.detach())
        return squares(model, rows, labels, generator)

    ledger = make_ledger()
    with pytest.raises(UsageError, match="changed while public noise was shown"):
        gradient(make_door(), two_layers(), loss, ledger=ledger)
    assert ledger.rows == []


class Coded(nn.Module):
    """Buffers, whose sums stay the same."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.change = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), change
        self.register_buffer("codes", torch.randn(256, 16))
        self.register_buffer("counts", torch.full((1024,), 1000, dtype=torch.long))

    def forward(self, rows):
        with torch.no_grad():
            self.change(self, int(rows.abs().sum() * 1000))
        return self.layers(rows)


def rows_in_order(model, number):
    model.codes.copy_(model.codes.roll(1 + number % 200, 0))


def columns_in_order(model, number):
    model.codes.copy_(model.codes.roll(1 + number % 15, 1))


def counts_of_one_total(model, number):
    model.counts[number % 1000] += 1
    model.counts[-1] -= 1


@pytest.mark.parametrize("change", [rows_in_order, columns_in_order, counts_of_one_total])
def test_another_order_of_a_buffer_is_a_change(change):
    with pytest.raises(UsageError, match="changed while public noise was shown"):
        gradient(make_door(), Coded(change))
