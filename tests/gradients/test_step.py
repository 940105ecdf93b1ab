# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One step of DP-SGD: clipping, the sum, the noise, the Poisson sample, and the source of randomness."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from diffusers_dp.distributed.memory import peak_bytes
from diffusers_dp.gradients import sampling
from diffusers_dp.gradients.parts import SUMMED_AT_ONCE
from diffusers_dp.gradients.sampling import poisson_sample
from diffusers_dp.gradients.step import add_noise, clip_factors, clipped_gradient_sum
from diffusers_dp.mechanisms import sampled
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import gradient, make_door
from support.statistics import dispersion


KEY = bytes(range(16))
NORMS = [0.0, 1e-30, 1e-3, 0.5, 1.0, 1.0000001, 7.0, 1e18, 1e25, 3e38, float("inf"), float("nan")]


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.GroupNorm(3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(27, 2))


def row_loss(model, rows, labels, generator):
    """Deterministic; the last class is loud."""
    loss = F.cross_entropy(model(rows), labels % 2, reduction="none")
    return loss * (1 + 100 * (labels == 3))


def batches(images, labels, size):
    return [counting(*chunk) for chunk in zip(images.split(size), labels.split(size), strict=True)]


def counting(images, labels=None):
    return images, labels, torch.ones(len(images), dtype=torch.bool), None


# Clipping.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 50.0])
def test_clipped_norms(norm, max_norm):
    """At most C; untouched below it; nothing at all of what is not finite, also where only the square overflows."""
    vector = torch.zeros(4)
    vector[1] = norm
    factor = clip_factors(vector.square().sum().view(1), max_norm)
    assert factor.shape == (1,) and 0 <= factor <= 1
    if not torch.isfinite(vector.square().sum()):
        assert factor == 0
    else:
        assert (factor * vector).norm() <= max_norm * (1 + 1e-6)
        assert (factor == 1) == (vector.norm() <= max_norm)
        if vector.norm() > max_norm:
            assert (factor * vector).norm() >= max_norm * (1 - 1e-6)


@pytest.mark.parametrize("size", [4, 8192])  # small parameters are kept side by side
def test_a_large_physical_batch_loses_none_of_its_terms(size):
    """Beside half as many large gradients, float32 takes each small one for a whole unit in its last place."""
    number, large = 4096, 2.0**-7
    images = torch.full((number, 1, 1, size), large)
    images[number // 2 :] = large * number / 2 * 2**-24 * 1.01
    batch = (images, None, torch.ones(number, dtype=torch.bool), None)
    total = clipped_gradient_sum(
        nn.Linear(size, 1, bias=False), lambda model, rows, *_: model(rows.flatten(1)).squeeze(1), [batch],
        max_grad_norm=1.0, noise_multiplicity=1, generator=PrivateGenerator(),
    )["weight"]  # fmt: skip
    error = (total.double() - images.double().flatten(1).sum(0)).norm()
    bound = 2 * (SUMMED_AT_ONCE**2 + number) * 2**-24  # docs/guarantee.md, as a part of a record's norm
    assert error <= bound * images[0].norm()


def test_one_broken_vector_does_not_touch_the_others():
    factors = clip_factors(torch.tensor([4.0, float("nan"), 0.25, float("inf")]), 1.0)
    assert factors.tolist() == [0.5, 0.0, 1.0, 0.0]


# The sum.


@pytest.mark.parametrize("noise_multiplicity", [1, 3])
def test_the_sum_does_not_depend_on_the_physical_batch_size(noise_multiplicity):
    images, labels, model = torch.randn(7, 1, 8, 8), torch.arange(7) % 4, small_net()
    truth = None
    for size in (7, 3, 1):
        total = clipped_gradient_sum(
            model,
            row_loss,
            batches(images, labels, size),
            max_grad_norm=0.1,
            noise_multiplicity=noise_multiplicity,
            generator=PrivateGenerator(KEY),
        )
        assert set(total) == {name for name, _ in model.named_parameters()}
        truth = truth or total
        for name, part in total.items():
            assert torch.allclose(part, truth[name], rtol=1e-5, atol=1e-6), (name, size)


def test_the_sum_is_that_of_clipped_gradients():
    """Against ordinary autograd, clipped image by image."""
    images, labels, model = torch.randn(5, 1, 8, 8), torch.arange(5) % 4, small_net()
    gradients = []
    for image, label in zip(images.split(1), labels.split(1), strict=True):
        gradients.append(torch.autograd.grad(row_loss(model, image, label, None).sum(), list(model.parameters())))
    norms = torch.tensor([sum(part.square().sum() for part in parts).sqrt() for parts in gradients])
    clip_norm = norms.median().item()  # some are clipped and some are not
    found = clipped_gradient_sum(
        model,
        row_loss,
        [counting(images, labels)],
        max_grad_norm=clip_norm,
        noise_multiplicity=1,
        generator=PrivateGenerator(KEY),
    )
    for parts, total in zip(zip(*gradients, strict=True), found.values(), strict=True):
        expected = sum(part * min(1.0, clip_norm / norm) for part, norm in zip(parts, norms, strict=True))
        assert torch.allclose(total, expected, rtol=1e-4, atol=1e-6 * clip_norm)


@pytest.mark.parametrize("clip_norm", [0.1, 1e6])
def test_a_large_batch_is_the_sum_of_its_images(clip_norm):
    """Clipped or not, no image is treated by what else is in its batch."""
    images, labels, model = torch.randn(70, 1, 8, 8), torch.arange(70) % 7 % 4, small_net()
    images *= torch.logspace(-1, 1, 70)[:, None, None, None]

    def total(*batch):
        arguments = {"max_grad_norm": clip_norm, "noise_multiplicity": 1, "generator": PrivateGenerator(KEY)}
        return clipped_gradient_sum(model, row_loss, [counting(*batch)], **arguments)

    together, alone = (
        total(images, labels),
        [total(*one) for one in zip(images.split(1), labels.split(1), strict=True)],
    )
    moved = sum((part - sum(one[name] for one in alone)).square().sum() for name, part in together.items())
    whole = sum(part.square().sum() for part in together.values())
    assert (moved / whole).sqrt() < 1e-5


def test_no_image_at_all_is_zero_plus_noise():
    """F4 of the notes: no forward pass, no skipped step, and no substitute."""
    model = small_net()
    model[4].bias.requires_grad_(False)
    total = clipped_gradient_sum(
        model, None, [], max_grad_norm=1.0, noise_multiplicity=4, generator=PrivateGenerator(KEY)
    )
    assert set(total) == {name for name, _ in model.named_parameters()} - {"4.bias"}
    assert all(
        part.count_nonzero() == 0 and part.shape == p.shape for part, p in zip(total.values(), model.parameters())
    )
    noisy = add_noise(total, std=2.0, normaliser=4, generator=PrivateGenerator(KEY))
    assert all(noisy[name] is part for name, part in total.items())  # no copy of it is made
    expected = PrivateGenerator(KEY)
    for name, part in total.items():
        assert torch.equal(noisy[name], expected.normal(part.shape, 2.0) / 4)


# The noise.


def test_noise_is_added_exactly_once():
    """Variance within 1 % over 400,000 draws, and exactly one draw per coordinate of the stream."""
    total = {"a": torch.full((400, 500), 7.0), "b": torch.full((200_000,), -3.0)}
    generator = PrivateGenerator(KEY)
    noisy = add_noise(
        {name: part.clone() for name, part in total.items()}, std=0.6, normaliser=5.0, generator=generator
    )
    noise = torch.cat([(noisy[name] * 5.0 - total[name]).flatten() for name in total])
    assert noise.double().var().item() == pytest.approx(0.36, rel=0.01)
    assert abs(noise.double().mean().item()) < 5 * 0.6 / len(noise) ** 0.5
    statistic = (noise.double() / 0.6).square().sum().item()
    assert 1e-4 < stats.chi2.cdf(statistic, len(noise)) < 1 - 1e-4
    assert stats.kstest(noise[:20_000].numpy() / 0.6, "norm").pvalue > 1e-3
    same = PrivateGenerator(KEY)
    same.normal((400_000,), 1.0)
    assert torch.equal(generator.normal((5,), 1.0), same.normal((5,), 1.0))


def test_noise_is_white_between_steps_and_parameters():
    """No draw is used twice: all pairs of (step, parameter) are uncorrelated."""
    generator = PrivateGenerator(KEY)
    zeros = [{name: torch.zeros(10_000) for name in "abc"} for _ in range(4)]
    steps = [add_noise(zero, std=1.0, normaliser=1.0, generator=generator) for zero in zeros]
    draws = torch.stack([part for step in steps for part in step.values()]).double()
    correlations = torch.corrcoef(draws) - torch.eye(len(draws))
    assert correlations.abs().max() < 5 / 100
    summed = draws.view(4, 3, -1).sum(0).flatten()
    assert summed.var().item() == pytest.approx(4.0, rel=0.05)


# Memory.


def test_a_step_holds_the_gradients_of_its_images_and_little_more():
    """1.25 x images x parameters at most (16 images: sums in float64 are 0.13 of it), whatever K is."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.LayerNorm(400), nn.Linear(400, 400), nn.Linear(400, 64))
    parameters = sum(4 * parameter.numel() for parameter in model.parameters())
    peaks = []
    for multiplicity in (1, 4):
        door = make_door(count=16, num_images=16)
        arguments = {"noise_multiplicity": multiplicity, "max_physical_batch_size": 16}
        step = functools.partial(gradient, door, model, **arguments)
        step()
        peaks.append(peak_bytes(step, torch.device("cpu")))
    assert all(peak <= 1.25 * 16 * parameters for peak in peaks), [peak / 16 / parameters for peak in peaks]
    assert abs(peaks[1] - peaks[0]) <= 0.03 * peaks[0]  # activations


# Devices.


def test_a_step_never_waits_for_the_device():
    """Tensors without storage have no value that could be looked at: `bool`, `item`, a shape that depends on values
    or a copy to the CPU raises."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    model = net.to("meta")

    def loss(model, rows, labels, generator):
        return model(rows + generator.normal(rows.shape, 1.0, rows.device)).square().sum(1)

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


# Sampling.


def inclusion_matrix(draw, steps=400, records=2000):
    matrix = np.zeros((steps, records), dtype=bool)
    for step in range(steps):
        matrix[step, draw(step)] = True
    return matrix


@pytest.mark.parametrize("key", [KEY, KEY[::-1]])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_poisson_sampling_has_the_dispersion_of_independent_draws(key, rate):
    generator = PrivateGenerator(key)
    matrix = inclusion_matrix(lambda step: poisson_sample(2000, rate, generator).numpy())
    assert min(dispersion(matrix, rate)) > 1e-3
    following = (matrix[1:] & matrix[:-1]).mean()  # independent of the step before
    assert following == pytest.approx(rate**2, abs=5 * rate / matrix.size**0.5)


@pytest.mark.parametrize("num_records", [0, 1, 6, 7, 8, 14, 100])
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_poisson_samples_do_not_depend_on_the_size_of_chunks(num_records, rate, monkeypatch):
    """Drawn chunk by chunk, a sample is the one that a single draw of all numbers gives; every record is there at rate
    1, once. What is drawn afterwards is the same, too."""
    monkeypatch.setattr(sampling, "_CHUNK", 7)
    chunked, whole = PrivateGenerator(KEY), PrivateGenerator(KEY)
    for generator in (chunked, whole):
        generator.normal((3,), 1.0)  # leaves half of a 64-bit word
    sample = poisson_sample(num_records, rate, chunked)
    assert sample.dtype == torch.int64
    assert sample.tolist() == np.flatnonzero(whole.uniform(num_records) < rate).tolist()
    assert (chunked.uniform(3) == whole.uniform(3)).all()


def test_poisson_samples():
    generator = PrivateGenerator(KEY)
    assert torch.equal(poisson_sample(5, 1.0, generator), torch.arange(5))
    assert len(poisson_sample(100, 1e-9, generator)) == 0 and len(poisson_sample(0, 0.5, generator)) == 0
    sample = poisson_sample(1000, 0.3, generator)
    assert sample.dtype == torch.long and (sample.diff() > 0).all() and sample.max() < 1000


# Randomness.


def stream(generator):
    return torch.cat([generator.normal((50,), 1.0).double(), torch.from_numpy(generator.uniform(50))])


@pytest.mark.parametrize("bit", [0, 31, 32, 33, 63, 64, 65, 127])
def test_every_bit_of_the_key_counts(bit):
    """Torch's CPU generator drops all above bit 31."""
    key = bytearray(KEY)
    key[bit // 8] ^= 1 << bit % 8
    assert (stream(PrivateGenerator(KEY)) != stream(PrivateGenerator(bytes(key)))).all()


def test_seeds_do_not_reach_the_private_source():
    """Two generators under the same user seed differ, and a keyed one does not mind the seed."""
    draws, keyed = [], []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        draws.append(stream(PrivateGenerator()))
        keyed.append(stream(PrivateGenerator(KEY)))
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))  # and not back
    assert (draws[0] != draws[1]).all()
    torch.manual_seed(1)
    np.random.seed(1)
    assert torch.equal(keyed[0], keyed[1]) and torch.equal(keyed[0], stream(PrivateGenerator(KEY)))


def test_the_private_source_is_never_serialised():
    generator = PrivateGenerator()
    for copier in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never serialised"):
            copier(generator)
    assert "key" not in repr(generator)
