# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mean features of random networks, and images that are moved to them."""

import pytest
import torch

from diffusers_dp.distributed.processes import Processes
from diffusers_dp.models.feature_matching import Matching
from diffusers_dp.queries.random_networks import NetworkMeans, RandomNetworkFeatures


def pictures(shape, count, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 17)])
def test_a_row_has_norm_one_and_all_networks_the_same_part(shape):
    networks = RandomNetworkFeatures(shape, num_networks=3, width=4, seed=0)
    images = torch.cat([pictures(shape, 4), torch.zeros(1, *shape), torch.ones(1, *shape)])
    rows = networks(images)
    assert rows.shape == (6, networks.num_features)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(rows.unflatten(1, (3, -1)).norm(dim=2), torch.full((6, 3), 3**-0.5))
    query = NetworkMeans(feature_map=networks)
    rows = query.features(images, None)
    assert rows.shape[1] == query.num_values and rows.norm(dim=1).max() <= query.clip_norm + 1e-6


def test_weights_follow_from_the_seed_alone():
    shape = (1, 8, 8)
    images, same = pictures(shape, 2), RandomNetworkFeatures(shape, 2, 4, seed=5)(pictures(shape, 2))
    assert torch.equal(RandomNetworkFeatures(shape, 2, 4, seed=5)(images), same)
    assert not torch.equal(RandomNetworkFeatures(shape, 2, 4, seed=6)(images), same)


def test_a_sum_without_noise_has_counts_and_features():
    networks = RandomNetworkFeatures((1, 8, 8), 2, 4, seed=0)
    query, images = NetworkMeans(feature_map=networks), pictures((1, 8, 8), 7)
    sums = query.finish(query.features(images, None).sum(0)[None, None], 7, 0.0)
    torch.testing.assert_close(sums[0, 0], torch.tensor(7.0))
    torch.testing.assert_close(sums[0, 1:], networks(images).sum(0))


def moved(images, labels, means, deviations, networks):
    matching = Matching(
        networks,
        means,
        torch.tensor(deviations),
        num_steps=200,
        num_images=8,
        learning_rate=0.02,
        processes=Processes(),
    )
    return matching.move(images, labels, seed=0)


def test_images_come_closer_to_the_means_and_noise_moves_none():
    """Dark images of the first class and no images of the last one: means of bright ones, with and without noise."""
    networks = RandomNetworkFeatures((1, 8, 8), 2, 8, seed=0)
    images = (60 + pictures((1, 8, 8), 24) * 100).byte()
    labels = torch.arange(24) % 2

    def mean(some):
        return networks(some.float() / 255).unflatten(1, (2, -1)).mean(0) * 2**0.5

    bright = mean((100 + pictures((1, 8, 8), 24, seed=1) * 100).byte())
    means = torch.stack([bright, mean(images[labels == 1]), bright])
    after = moved(images, labels, means, [0.0, 0.0, 0.0], networks)
    assert after.dtype == torch.uint8 and after.shape == images.shape
    before, now = ((mean(some[labels == 0]) - bright).norm() for some in (images, after))
    assert now < before / 2
    assert torch.equal(moved(images, labels, means, [9.0, 9.0, 9.0], networks), images), "noise could explain it all"
