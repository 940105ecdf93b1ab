# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Noise and Poisson samples as they come out of the door: how much, how often, from where, and what happens when they
fail."""

import logging

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from diffusers_dp.gradients import step as dp_sgd_step
from diffusers_dp.mechanisms import sampled
from diffusers_dp.models.denoiser import EDMDenoiser, EDMLoss
from diffusers_dp.privacy import passages, sensitive
from diffusers_dp.randomness import private_generator as randomness
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import KEY, NUM_IMAGES, SHAPE, Counting, gradient, make_door, make_ledger, put, squares, two_layers
from support.models import convolutional_unet
from support.places import ROOT
from support.sources import handlers
from support.statistics import dispersion


def ask(door, fn=lambda x, _: x.flatten(1), **changes):
    arguments = {"mechanism": sampled(1.0, 3.0, by_label=True), "clip_norm": 0.5, "name": "query"}
    return put(door, "noisy_sum", fn, **{**arguments, "ledger": make_ledger(door.num_units), **changes})


# How much.


def check_standard_deviation(noise, std):
    """Within 0.5 %, by a chi-square test as well, and of full length and precision."""
    noise = noise.double().flatten() / std
    assert len(noise) >= 1e6
    assert noise.std().item() == pytest.approx(1.0, abs=0.005)
    assert 1e-6 < stats.chi2.cdf(noise.square().sum().item(), len(noise)) < 1 - 1e-6
    assert abs(noise.mean().item()) < 5 / len(noise) ** 0.5
    assert 4.2 < noise.abs().max() < 7  # the tails are there: 27 draws of a million are expected beyond 4.2
    assert len(noise.unique()) > len(noise) / 2  # in full precision: bfloat16 has 65,536 values


def test_noise_of_an_answer_has_the_stated_standard_deviation():
    """sigma times the clip norm, in the row of each class, whatever was asked and whoever is missing."""
    answer = ask(make_door(range(NUM_IMAGES)), lambda x, _: x.new_ones(len(x), 350_000))
    check_standard_deviation(answer, 3.0 * 0.5)
    for row in answer[0]:
        assert row.std().item() == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("missing", [(), range(NUM_IMAGES)], ids=["everybody", "nobody"])
def test_noise_of_a_gradient_has_the_stated_standard_deviation(missing):
    """sigma C over the normaliser. The clipped sum itself has norm 12 C at most, nothing among a million numbers."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 15_700))
    noisy = gradient(make_door(missing), model)
    check_standard_deviation(torch.cat([part.flatten() for part in noisy.values()]), 2.0 * 0.1 / 4.0)


# How often, and never again.


@pytest.mark.parametrize(("rate", "multiplicity"), [(1.0, 1), (0.5, 1), (1e-9, 1), (1.0, 3)])
@pytest.mark.parametrize("physical", [1, 5, 100])
def test_a_step_draws_one_sample_and_one_noise_for_each_parameter(physical, rate, multiplicity):
    """However many physical batches there are, none included."""
    generator = Counting()
    gradient(
        make_door(), two_layers(), max_physical_batch_size=physical, generator=generator,
        mechanism=sampled(rate, 2.0), noise_multiplicity=multiplicity,
    )  # fmt: skip
    assert generator.normals == [((100, 64), 0.2), ((100, 100), 0.2)]
    assert generator.uniforms == [NUM_IMAGES]


def test_an_answer_draws_one_sample_and_one_noise_each_time_it_is_asked():
    generator = Counting()
    ask(make_door(), repeats=4, mechanism=sampled(0.5, 3.0, by_label=True), generator=generator)
    assert generator.normals == [((3, 64), 1.5)] * 4 and generator.uniforms == [NUM_IMAGES] * 4


def test_noise_of_the_door_is_white():
    """Between steps, between parameters, and between a query and a step: no draw is used twice, nor its
    opposite."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 150, bias=False), nn.Linear(150, 64, bias=False))
    door, noise = make_door(range(NUM_IMAGES)), []
    for _ in range(4):
        noise += [part.flatten() for part in gradient(door, layers).values()]
        noise.append(ask(door, lambda x, _: x.new_zeros(len(x), 3200)).flatten())
    draws = torch.stack(noise).double()
    assert draws.shape == (12, 9600)
    correlations = torch.corrcoef(draws) - torch.eye(12)
    assert correlations.abs().max() < 6 / 9600**0.5


def test_a_run_repeated_under_the_same_seed_has_other_noise():
    answers, gradients = [], []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        door = make_door()
        answers.append(ask(door))
        gradients.append(torch.cat([part.flatten() for part in gradient(door, two_layers()).values()]))
    for first, second in (answers, gradients):
        assert (first != second).double().mean() > 0.999  # of many float32, some are equal by chance
        assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.5


# From where.


def test_nothing_is_drawn_but_from_the_private_source(monkeypatch):
    """Torch's and numpy's own draws follow `--seed`; with the training loss, too, the door uses none of them."""

    def forbidden(*_, **__):
        raise AssertionError("drawn from a public generator")

    door, generator = make_door(), PrivateGenerator(KEY)
    unet = convolutional_unet()
    denoiser, changes = EDMDenoiser(unet), {"noise_multiplicity": 2, "generator": generator}
    names = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like")
    for name in names:
        monkeypatch.setattr(torch, name, forbidden)
    for name in ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_", "log_normal_"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    for name in (
        "normal",
        "standard_normal",
        "randn",
        "rand",
        "random",
        "uniform",
        "choice",
        "permutation",
        "shuffle",
    ):
        monkeypatch.setattr(np.random, name, forbidden)
    monkeypatch.setattr(np.random, "default_rng", forbidden)
    ask(door, mechanism=sampled(0.5, 3.0, by_label=True))
    gradient(door, denoiser, EDMLoss(0.3), mechanism=sampled(0.5, 2.0), **changes)


def test_every_draw_on_cuda_has_a_fresh_secret_seed(monkeypatch):
    """The card's generator has no 128-bit key, so it gets a new seed each time; here a stand-in for it notes them."""
    seeds, randn = [], torch.randn

    class Card:
        def __init__(self, device):
            assert device.type == "cuda"

        def manual_seed(self, seed):
            seeds.append(seed)
            return self

    monkeypatch.setattr(torch, "Generator", Card)
    monkeypatch.setattr(torch, "randn", lambda shape, generator, device: randn(shape))
    for _ in range(2):  # as a run that is started again under the same seed
        torch.manual_seed(0)
        source = PrivateGenerator()
        for _ in range(20):
            assert source.normal((3,), 2.0, "cuda").shape == (3,)
    assert len(set(seeds)) == 40 and max(abs(seed) for seed in seeds) > 2**56


# Who takes part.

STEPS, RECORDS, RATE = 400, 2000, 0.05


def numbered_door():
    """Two thousand images of two pixels that spell their number."""
    numbers = np.arange(RECORDS)
    images = np.stack([numbers // 256, numbers % 256], axis=1).astype(np.uint8).reshape(RECORDS, 1, 1, 2)
    return make_door(images=images)


def seen_by_a_query(door):
    seen = []

    def note(x, _):
        seen.append((x * 255).round().long().flatten(1) @ torch.tensor([256, 1]))
        return x.flatten(1)

    ask(
        door, note, mechanism=sampled(RATE, 3.0, by_label=True), repeats=STEPS, ledger=make_ledger(RECORDS),
        generator=PrivateGenerator(KEY),
    )  # fmt: skip
    return seen[-STEPS:]  # before, random records are tried


def seen_by_steps(door):
    seen, ledger, generator = [], make_ledger(RECORDS), PrivateGenerator(KEY)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1))

    def note(model, rows, labels, generator):
        seen.append(((rows + 1) * 127.5).round().long().flatten(1) @ torch.tensor([256, 1]))
        return squares(model, rows, labels, generator)

    for _ in range(STEPS):
        gradient(
            door, model, note, mechanism=sampled(RATE, 2.0), max_physical_batch_size=RECORDS,
            ledger=ledger, reserve_steps=STEPS, generator=generator,
        )  # fmt: skip
    return seen


@pytest.mark.parametrize("ask_door", [seen_by_a_query, seen_by_steps])
@pytest.mark.usefixtures("watching")
def test_the_door_takes_poisson_samples_at_the_stated_rate(ask_door):
    """Sizes of samples and counts of records are as uneven as independent draws, as in `test_step.py`, where the same
    numbers reject a shuffled order and samples of a fixed size."""
    samples = ask_door(numbered_door())
    matrix = np.zeros((STEPS, RECORDS), dtype=bool)
    assert len(samples) == STEPS
    for row, sample in zip(matrix, samples, strict=True):
        row[sample.numpy()] = True
        assert row.sum() == len(sample)  # nobody twice
    assert min(dispersion(matrix, RATE)) > 1e-3
    assert matrix.mean() == pytest.approx(RATE, abs=5 * (RATE / matrix.size) ** 0.5)


# Broken records, in a step of DP-SGD.


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38, 1e30])
def test_a_broken_record_is_as_good_as_an_unreadable_one(value, capfd, caplog):
    """It contributes zero, moves nobody else, and nothing is said about it."""

    def loud(model, rows, labels, generator):
        return squares(model, rows, labels, generator) * torch.where(rows.flatten(1).amin(1) > 0.9, value, 1.0)

    images = np.random.default_rng(0).integers(0, 200, (NUM_IMAGES, *SHAPE), dtype=np.uint8)
    images[7] = 255
    said = []
    with caplog.at_level(logging.DEBUG):
        answers = [
            torch.cat([
                part.flatten()
                for part in gradient(
                    make_door(missing, images), two_layers(), loud, generator=PrivateGenerator(KEY)
                ).values()
            ])
            for missing in ((), (7,), range(NUM_IMAGES))
        ]  # fmt: skip
        said = capfd.readouterr(), caplog.records
    broken, unreadable, nobody = answers
    expected = 0.1 / 4.0 if value == 1e30 else 0.0  # a huge loss alone is clipped, not left out
    assert (broken - unreadable).norm().item() <= expected * (1 + 1e-4) + 1e-7
    assert (unreadable - nobody).norm() > 0.1 / 4.0  # the others are there
    assert torch.isfinite(broken).all() and tuple(said[0]) == ("", "") and not said[1]


# What fails, fails.


class Broken(Exception):
    pass


def broken(*_, **__):
    raise Broken


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (PrivateGenerator, "normal"), (PrivateGenerator, "uniform"), (passages, "poisson_sample"),
        (sensitive, "clip_factors"), (dp_sgd_step, "clip_factors"), (passages, "add_noise"),
        (dp_sgd_step, "per_example_gradients"), (randomness.os, "urandom"),
    ],
)  # fmt: skip
def test_an_exception_in_noise_clipping_or_sampling_ends_everything(monkeypatch, owner, name):
    """No answer is better than one without noise."""
    door, failed = make_door(), 0
    monkeypatch.setattr(owner, name, broken)
    queries = [
        lambda: ask(door),
        lambda: gradient(door, two_layers()),
    ]
    for query in queries:
        try:
            query()
        except Broken:
            failed += 1
    assert failed == {"per_example_gradients": 1, "clip_factors": 1}.get(name, 2)


LIBRARY = ROOT / "diffusers_dp"
GUARDED = [
    "privacy/sensitive.py", "privacy/passages.py", "privacy/records.py", "randomness/private_generator.py",
    "accounting/ledger_row.py", *(f"mechanisms/{path.name}" for path in (LIBRARY / "mechanisms").glob("*.py")),
    *(f"gradients/{name}.py" for name in "step sampling per_example rules parts supported".split()),
    "queries/central_images.py", "queries/frequency.py",
]  # fmt: skip


FORGETFUL = ("decoding.py", "decoding_workers.py", "mapped.py", "painting.py", "verify.py")


@pytest.mark.parametrize("name", GUARDED)
def test_nothing_is_caught_around_noise_clipping_and_sampling(name):
    assert list(handlers(ROOT / "diffusers_dp" / name)) == []


def test_nowhere_is_everything_caught_and_forgotten():
    """Neither in the library nor in a script that calls the door; but an image may fail to decode in any way it likes,
    what fails in another process is raised in the one that asked, and the verifier says of any folder that it is
    wrong."""
    broad = ("everything", "Exception", "BaseException")
    for folder in ("diffusers_dp", "pipelines", "training"):
        for path in (ROOT / folder).rglob("*.py"):
            swallowed = [caught for caught, raised in handlers(path) if caught in broad and not raised]
            assert not swallowed or path.name in FORGETFUL, path


def test_noise_does_not_run_out():
    """Nothing comes again within four million draws of one source: no pool of numbers is behind it."""
    source = PrivateGenerator()
    pairs = np.concatenate([source.normal((500_000, 2), 1.0).numpy().view(np.uint64).ravel() for _ in range(4)])
    assert len(np.unique(pairs)) > len(pairs) - 3
    draws = np.concatenate([source.uniform(500_000) for _ in range(4)])
    assert len(np.unique(draws)) > len(draws) - 3
