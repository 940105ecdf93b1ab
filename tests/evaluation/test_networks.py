# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The classifiers' networks: as large as published, for every size and number of channels that is promised."""

import pytest
import torch

from diffusers_dp.evaluation.networks import build_network


RGB = (3, 32, 32)


def size(network):
    return sum(p.numel() for p in network.parameters())


# Closed forms, written down from the papers' tables and not from the code. A convolution of a x b channels and its
# norm: 9ab + 2b.


def wide_resnet_size(depth, k, channels=3, classes=10):
    n, total, inputs = (depth - 4) // 6, 9 * 16 * channels, 16
    for width in (16 * k, 32 * k, 64 * k):
        total += 9 * inputs * width + inputs * width  # its first convolution, and the projection
        total += (2 * n - 1) * 9 * width**2  # all others
        total += 2 * inputs + (2 * n - 1) * 2 * width  # a norm before each
        inputs = width
    return total + 2 * inputs + inputs * classes + classes


def resnet_size(depth, channels=3, classes=10):
    n, total = (depth - 2) // 6, 9 * 16 * channels + 2 * 16
    total += 2 * n * (9 * 16**2 + 2 * 16)
    for inputs, width in ((16, 32), (32, 64)):
        total += 9 * inputs * width + (2 * n - 1) * 9 * width**2 + 2 * n * 2 * width
        total += inputs * width + 2 * width
    return total + 64 * classes + classes


def resnext_size(n, groups, w, channels=3, classes=10):
    total, inputs = 9 * 64 * channels + 2 * 64, 64
    for base in (64, 128, 256):
        middle, width = groups * base, base * w
        for block in range(n):
            first = inputs if block == 0 else width
            total += first * middle + 9 * middle**2 // groups + middle * width + 2 * (2 * middle + width)
        total += inputs * width + 2 * width
        inputs = width
    return total + inputs * classes + classes


@pytest.mark.parametrize(
    ("name", "cifar", "closed_form", "published_millions"),
    [
        ("wrn", False, wide_resnet_size(40, 4), 8.9),  # Zagoruyko & Komodakis, Table 4
        ("wrn", True, wide_resnet_size(28, 10), 36.5),
        ("resnet", False, resnet_size(110), 1.7),  # He et al., Table 6
        ("resnet", True, resnet_size(164), None),
        ("resnext", False, resnext_size(3, 8, 4), 34.4),  # Xie et al., Table 7: 29, 8x64d
        ("resnext", True, resnext_size(2, 8, 10), None),
    ],
)
def test_the_networks_are_as_large_as_published(name, cifar, closed_form, published_millions):
    with torch.device("meta"):
        network = build_network(name, RGB, 10, cifar=cifar)
    assert size(network) == closed_form
    if published_millions is not None:
        assert closed_form / 1e6 == pytest.approx(published_millions, abs=0.06)  # 8.95 was cut to 8.9, not rounded


@pytest.mark.parametrize("name", ["cnn", "wrn", "resnet", "resnext"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 28, 32, 64, 128])
def test_every_size_and_channel_count(name, channels, side):
    with torch.device("meta"):  # shapes alone: nothing is computed
        network = build_network(name, (channels, side, side), 7).eval()
        assert network(torch.zeros(2, channels, side, side)).shape == (2, 7)
