# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Moments: frequencies of an image, and rows whose sums are counts, means, covariances and grey levels."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diffusers_dp.models.gaussian_mixture import GaussianMixture, denoised, in_levels, shrunk, symmetric
from diffusers_dp.queries.moments import ClassMoments, Frequencies, GreyLevels, PartCovariances, PartMeans
from diffusers_dp.runs.moments_run import NoisyMoments


SHAPES = [(1, 8, 8), (3, 8, 6), (2, 5, 9)]
NUMBER = 12


def asked(kind, shape=(1, 8, 8), **fields):
    return kind(image_shape=shape, num_frequencies=NUMBER, **fields)


def pictures(shape, count=300, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_all_frequencies_hold_the_image(shape):
    images, whole = pictures(shape, 5), Frequencies(shape, 4 * math.prod(shape))
    torch.testing.assert_close(whole.images(whole(images)), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(whole.waves @ whole.waves.T, torch.eye(len(whole.waves)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_waves_are_made_once_in_memory(channels):
    """A stranger's judge may have 200 million of their values."""
    made = {}

    class Kept(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, given=(), options=None):
            found = operation(*given, **(options or {}))
            if isinstance(found, torch.Tensor) and found.numel() > 200_000:
                made[found.untyped_storage().data_ptr()] = found  # no other gets its place
            return found

    with Kept():
        waves = Frequencies((channels, 32, 32), 800).waves  # nothing for each pair of them, either
    assert waves.numel() > 800_000 and list(made) == [waves.untyped_storage().data_ptr()]


@pytest.mark.parametrize("shape", SHAPES)
def test_few_frequencies_are_the_lowest(shape):
    few = Frequencies(shape, NUMBER)
    assert asked(ClassMoments, shape).num_dimensions == len(few.waves) < math.prod(shape)
    grey = torch.full((1, *shape), 0.7)
    torch.testing.assert_close(few.images(few(grey)), grey)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_row_is_longer_than_one(shape):
    """No image of values in [0, 1] is cut in counts and means; the others are cut here, before the door looks."""
    checks = (torch.arange(math.prod(shape)) % 2).float().view(shape)
    images = torch.cat([torch.stack([torch.zeros(shape), torch.ones(shape), checks]), pictures(shape, 20)])
    centres = torch.randn(1, 3, asked(ClassMoments, shape).num_dimensions, generator=torch.Generator().manual_seed(1))
    features = [asked(ClassMoments, shape).features, GreyLevels().features]
    features += [asked(kind, shape, num_parts=3, **more).rows(centres, 0.5)
                 for kind, more in ((PartMeans, {"number": 1}), (PartCovariances, {}))]  # fmt: skip
    for rows in features:
        lengths = rows(images, None).norm(dim=1)
        assert lengths.max() <= 1 + 1e-6 and lengths.min() > 0.1
    torch.testing.assert_close(features[0](images, None).norm(dim=1), torch.ones(len(images)))


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_without_noise_are_the_moments(shape):
    """Of two classes, each with three parts."""
    images, labels = pictures(shape), torch.arange(300) % 3 % 2
    first = asked(ClassMoments, shape)
    weighted = first.spectrum(images)

    def answer(features, classes=2):
        rows = features(images, labels)
        return torch.zeros(1, classes, rows.shape[1]).index_add_(1, labels, rows[None])

    sums = first.finish(answer(first.features), 300, 1.0)
    means = torch.stack([weighted[labels == label].mean(0) for label in (0, 1)])
    torch.testing.assert_close(sums[:, -2], labels.bincount().float())
    torch.testing.assert_close(sums[:, :-2] / sums[:, -2:-1], means, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sums[:, -1].sum(), weighted.square().sum(), rtol=1e-4, atol=0)

    centres = means[:, None] + torch.randn(2, 3, means.shape[1], generator=torch.Generator().manual_seed(2))
    own = torch.stack([torch.cdist(row[None], centres[label]).argmin() for row, label in zip(weighted, labels)])
    moved = weighted - centres[labels, own]
    clip = 1.1 * float(moved.norm(dim=1).max())
    for kind, more in ((PartMeans, {"number": 1}), (PartCovariances, {})):
        query = asked(kind, shape, num_parts=3, **more)
        counts, sums = query.parts_of(answer(query.rows(centres, clip)), clip)
        for label in (0, 1):
            for part in range(3):
                rows = moved[(labels == label) & (own == part)]
                torch.testing.assert_close(counts[label, part], torch.tensor(float(len(rows))), atol=0.01, rtol=0)
                found = symmetric(sums[label, part]) if query.pairs else sums[label, part]
                expected = rows.T @ rows if query.pairs else rows.sum(0)
                torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-3)


def test_a_far_image_is_cut_to_the_clip():
    centres = torch.zeros(1, 1, NUMBER)
    query = asked(PartCovariances, num_parts=1)
    counts, sums = query.parts_of(query.rows(centres, 0.1)(torch.ones(1, 1, 8, 8), None)[None], 0.1)
    torch.testing.assert_close(symmetric(sums[0, 0]).trace(), torch.tensor(0.01))
    torch.testing.assert_close(counts, torch.ones(1, 1))


def test_a_stored_answer_is_about_these_frequencies_and_centres():
    for kind, more in ((ClassMoments, {}), (PartMeans, {"num_parts": 2, "number": 1})):
        query = asked(kind, **more)
        assert replace(query, num_frequencies=9).meaning != query.meaning
    assert replace(query, centres_sha256="0" * 64).meaning != query.meaning
    assert GreyLevels(num_levels=16).meaning != GreyLevels().meaning


def test_grey_levels_are_the_values_of_the_pixels():
    images = torch.tensor([0.0, 0.1, 0.5, 1.0]).view(1, 1, 2, 2)
    query = GreyLevels(num_levels=4)
    rows = query.features(images, None)
    assert rows.tolist() == [[0.5, 0, 0.25, 0.25]]
    assert query.finish(rows[None], 1, 1.0).tolist() == [[[0.5, 0.5, 0.75, 1.0]]]
    noisy = query.finish(rows[None] + torch.tensor([0, -0.2, 0, 0]), 1, 1.0)
    assert (noisy.diff() >= 0).all() and noisy[0, 0, -1] == 1, "shares rise, whatever the noise"
    assert query.finish(-rows[None], 1, 1.0).isfinite().all(), "a class of noise alone"
    moved = in_levels(torch.tensor([3.0, 1.0, 2.0, 4.0]).view(2, 1, 1, 2), torch.tensor([[0.5, 0.5, 0.75, 1.0]]))
    moved = moved.flatten()
    assert moved.argsort().tolist() == [1, 2, 0, 3] and moved.min() >= 0 and (moved < 0.25).sum() == 2


def test_grey_levels_matched_twice_leave_more_of_the_coefficients():
    spectrum, levels = Frequencies((1, 8, 8), 16), torch.tensor([[[0.7, 0.8, 0.9, 1.0]]])
    mixture = GaussianMixture(torch.ones(1, 1), torch.zeros(1, 1, 16), torch.eye(16).expand(1, 1, 16, 16))
    moments = NoisyMoments(mixture, torch.ones(1), levels, spectrum)
    asked = mixture.draw(torch.zeros(200, dtype=torch.int64), torch.Generator().manual_seed(0))
    once, twice = (moments.draw(200, "uniform", 0, levels_twice=each)[0] / 255 for each in (False, True))
    torch.testing.assert_close(once.flatten().sort().values, twice.flatten().sort().values, atol=1 / 255, rtol=0)
    lost = [float((spectrum(images) - asked).square().mean()) for images in (once, twice)]
    assert lost[1] < 0.95 * lost[0]


def test_a_mixture_draws_its_moments():
    """Directions that noise made negative are left out."""
    generator = torch.Generator().manual_seed(0)
    means = torch.tensor([[[5.0, 0, 0], [0, 5, 0]], [[0, 0, 9], [0, 0, -9]]])
    own = torch.diag(torch.tensor([2.0, 0.5, -1.0])).expand(2, 2, 3, 3)
    mixture = GaussianMixture(torch.tensor([[3.0, 0], [1, 1]]), means, own)
    drawn = mixture.draw(torch.tensor([0, 1]).repeat(20_000), generator)
    zeros, ones = drawn[::2], drawn[1::2]
    torch.testing.assert_close(zeros.mean(0), means[0, 0], atol=0.05, rtol=0)
    torch.testing.assert_close(zeros.T.cov(), torch.diag(torch.tensor([2.0, 0.5, 0])), atol=0.06, rtol=0)
    assert abs((ones[:, 2] > 0).float().mean() - 0.5) < 0.02 and ones[:, 2].abs().allclose(torch.tensor(9.0))


def test_means_shrink_by_their_noise():
    noise = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    still = shrunk(0.1 * noise, torch.full((4,), 0.1))
    assert still.square().mean() < 0.002, "of nothing but noise nearly nothing is left"
    torch.testing.assert_close(shrunk(3 + 0.1 * noise, torch.full((4,), 0.1)), 3 + 0.1 * noise, atol=0.01, rtol=0.01)


def test_covariances_lose_the_noise_they_are_known_to_have():
    """What draws have of it looks like coloured snow: of each sum of squares only the positive half is drawn."""
    spectrum, generator = Frequencies((3, 16, 16), 64), torch.Generator().manual_seed(0)
    size = len(spectrum.weights)
    first, second = torch.triu_indices(size, size)
    sizes, noise = torch.tensor([[600.0, 300], [500, 0], [40, 20]]), 20.0
    variances = 4 / spectrum.weights.pow(2)
    pairs = torch.where(first == second, variances[first], 0.0).repeat(3, 2, 1)
    pairs[0, :, first == second] += 6.0 * (first[first == second] < 3)  # a class that differs in the lowest waves
    sums = (pairs + noise * torch.randn(pairs.shape, generator=generator) / sizes.clamp_min(1)[..., None]) * sizes[
        ..., None
    ]
    raw, found = (
        symmetric(sums / sizes.clamp_min(1)[..., None]),
        symmetric(denoised(sums, sizes, noise, spectrum.bands)),
    )
    true, drawn = symmetric(pairs), sizes > 0

    def energy(covariances):
        return torch.linalg.eigvalsh(covariances[drawn]).clamp_min(0).sum(1)

    assert (energy(raw)[-2:] > 2 * energy(true)[-2:]).all(), "a small part is mostly noise"
    torch.testing.assert_close(energy(found), energy(true), rtol=0.2, atol=0)
    assert ((found - true)[drawn].square().sum((1, 2)) < 0.2 * (raw - true)[drawn].square().sum((1, 2))).all()
    assert (found[0, 0].diagonal()[:3] > 0.7 * true[0, 0].diagonal()[:3]).all(), "what a class has of its own is kept"
    whole = symmetric(denoised(pairs * sizes[..., None], sizes, 1e-6, spectrum.bands))
    torch.testing.assert_close(whole[drawn], true[drawn], rtol=1e-4, atol=1e-4)
    assert found.isfinite().all() and denoised(0 * sums, 0 * sizes + 1, 5.0, spectrum.bands).abs().max() == 0
