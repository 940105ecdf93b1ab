# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The door refuses features that mix records, which its sensitivity does not cover, before anything is spent."""

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.queries.votes import NearestCandidates
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import CLASSES, KEY, make_door, make_ledger, put


def pixels(x):
    return x.flatten(1)


def ask(door, features, *, ledger=None, by_label=True):
    return put(
        door, "noisy_sum", features, sampled(1.0, 2.0, by_label=by_label), clip_norm=1.0, name="query",
        ledger=ledger or make_ledger(), generator=PrivateGenerator(KEY),
    )  # fmt: skip


def network(training):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    return lambda x, y: made.train(training)(x).detach()


def every_other(x, first):
    return (torch.arange(len(x)) % 2 == first)[:, None]


def votes(x):
    return int(pixels(x)[-1].sum() > pixels(x)[0].sum())


def tied_votes(x, y):
    """For a sum of products or for another one of the same terms: how many images of a class there are decides."""
    weights = torch.randn(64, 40, generator=torch.Generator().manual_seed(0))
    found = torch.zeros(len(x), 80)
    for label in y.unique():
        own = pixels(x)[y == label]
        found[y == label] = (own @ weights > own.flip(1) @ weights.flip(0)).float().repeat(1, 2)
    return found


MIXED = {
    "batch norm that trains, and dropout": network(training=True),
    "over the largest of the batch": lambda x, y: pixels(x) / x.max(),
    "less the mean of the batch": lambda x, y: pixels(x) - pixels(x).mean(0),
    "ranks": lambda x, y: pixels(x).argsort(0).float(),
    "softmax over the batch": lambda x, y: pixels(x).softmax(0),
    "by its place": lambda x, y: pixels(x) * torch.arange(1, len(x) + 1)[:, None],
    "the record before it": lambda x, y: pixels(x.roll(1, 0)),
    "the others' labels": lambda x, y: pixels(x) * (1 + (y[:, None] == y).sum(1, keepdim=True)),
    "a little of all": lambda x, y: pixels(x) + 0.01 * pixels(x).sum(0),
    "in larger batches only": lambda x, y: pixels(x) * (1 + (len(x) > 6)),
    "in larger batches only, a little": lambda x, y: pixels(x) * (1 + 0.01 * (len(x) > 6)),
    "alone only, a little": lambda x, y: pixels(x) * (1 + 0.01 * (len(x) == 1)),
    "in larger batches only, and short": lambda x, y: 0.002 * pixels(x) * (1 + 0.01 * (len(x) > 6)),
    "alone only": lambda x, y: pixels(x) * (1 + (len(x) == 1)),
    "random numbers": lambda x, y: torch.rand(len(x), 3),
    "a trace of the mean": lambda x, y: pixels(x) + 1e-6 * pixels(x).mean(0),
    "a trace of the next label": lambda x, y: pixels(x) + 1e-6 * y.roll(1, 0)[:, None],
    "a trace of how many blanks there are": lambda x, y: pixels(x) * (1 + 1e-6 * (pixels(x).sum(1) == 0).sum()),
    "the size of its class, a little": lambda x, y: pixels(x) * (1 + 1e-6 * (y[:, None] == y).sum(1, keepdim=True)),
    "one vote that another record decides": lambda x, y: torch.eye(2)[(torch.arange(len(x)) == 3).long() * votes(x)],
    "votes that rounding decides, class by class": lambda x, y: tied_votes(x, y),
    "even places, in the odd ones": lambda x, y: pixels(x) + 1e-6 * every_other(x, 1) * pixels(x[::2]).sum(0),
    "odd places, in the even ones": lambda x, y: pixels(x) + 1e-6 * every_other(x, 0) * pixels(x[1::2]).sum(0),
    "in small batches only, a little": lambda x, y: pixels(x) * (1 + 0.01 * (1 < len(x) < 6)),
    "a trace of random numbers": lambda x, y: pixels(x) * (1 + 1e-6 * torch.rand(len(x), 1)),
    "a trace of the highest label": lambda x, y: pixels(x) + 1e-6 * y.max(),
    "one row for all": lambda x, y: pixels(x).sum(0, keepdim=True),
    "one number an image": lambda x, y: x.sum((1, 2, 3)),
}

WEIGHTS = torch.randn(64, 500, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("level", [lambda x: x.amax(), lambda x: x.amin()], ids=["brightest", "darkest"])
@pytest.mark.parametrize("exact", [False, True])
def test_the_brightest_and_the_darkest_level_of_a_batch_show_in_large_images_too(exact, level):
    """Each of them has every level, if it is noise of every level."""
    images = np.random.default_rng(0).integers(0, 100, (40, 3, 32, 32), dtype=np.uint8)
    with pytest.raises(UsageError, match="no function of one image alone"):
        ask(make_door((), images, exact=exact), lambda x, y: pixels(x - level(x)))


def projected(x, y):
    return (pixels(x) @ WEIGHTS).cos()


OWN = {
    "a network that is evaluated": network(training=False),
    "an image and its label": lambda x, y: pixels(x) * (1 + y[:, None]),
    "one-hot labels": lambda x, y: torch.eye(len(CLASSES))[y],
    "nothing": lambda x, y: x.new_zeros(len(x), 4),
    "what is not finite": lambda x, y: pixels(x) / (pixels(x) > 0.5),
    "what is huge": lambda x, y: pixels(x) * 1e30,
    "a network of many sums": projected,
    "votes": NearestCandidates(lambda x: pixels(x) @ WEIGHTS, (torch.rand(3, 20, 64) @ WEIGHTS)),
    "in half precision": lambda x, y: (pixels(x).bfloat16() @ torch.ones(64, 3).bfloat16()).float(),
}


@pytest.mark.parametrize("name", MIXED)
def test_features_that_mix_records_are_refused(name):
    ledger = make_ledger()
    with pytest.raises(UsageError, match="'query'"):
        ask(make_door(), MIXED[name], ledger=ledger)
    assert ledger.rows == [], "nothing was spent"


@pytest.mark.parametrize("name", OWN)
def test_features_of_one_record_are_asked_for(name):
    ledger = make_ledger()
    assert torch.isfinite(ask(make_door(), OWN[name], ledger=ledger)).all() and len(ledger.rows) == 1


def test_a_trial_leaves_the_public_seed_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ask(make_door(), lambda x, y: pixels(x) + 0 * torch.rand(len(x), 1))
    assert torch.equal(torch.rand(3), expected)


def test_features_see_the_label_of_their_own_image():
    """Of an image that does not count they see anything."""
    door = make_door([1], labels="round")
    answers = [ask(door, lambda x, y: torch.eye(3)[y], by_label=by_label)[0] for by_label in (True, False)]
    blank = ask(make_door(range(12)), lambda x, y: torch.eye(3)[y])[0]
    assert torch.allclose(answers[0] - blank, torch.diag(torch.tensor([4.0, 3.0, 4.0])), atol=1e-5)
    assert answers[1].shape == (1, 3)


def test_no_gradient_of_the_images_leaves_with_an_answer():
    """Features may have parameters: a graph would carry what the images say of them, without noise."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    answer = ask(make_door(), lambda x, y: network(x))
    assert not answer.requires_grad and answer.grad_fn is None
