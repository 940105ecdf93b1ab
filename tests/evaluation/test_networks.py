# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The classifiers' networks: as large as published, for every size and number of channels that is promised."""

import pytest
import torch

from diffusers_dp.evaluation.networks import build_network
from support.few import few


@pytest.mark.parametrize(
    ("name", "cifar", "parameters"),
    [
        ("wrn", False, 8_949_210),  # 8.9 million: Zagoruyko & Komodakis, Table 4
        ("wrn", True, 36_479_194),  # 36.5
        ("resnet", False, 1_730_714),  # 1.7: He et al., Table 6
        ("resnet", True, 2_605_658),
        ("resnext", False, 34_426_698),  # 34.4: Xie et al., Table 7: 29, 8x64d
        ("resnext", True, 40_559_690),
    ],
)
def test_the_networks_are_as_large_as_published(name, cifar, parameters):
    with torch.device("meta"):
        network = build_network(name, (3, 32, 32), 10, cifar=cifar)
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize("name", ["cnn", "wrn", "resnet", "resnext"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", few([8, 28, 32, 64, 128]))
def test_every_size_and_channel_count(name, channels, side):
    with torch.device("meta"):  # shapes alone: nothing is computed
        network = build_network(name, (channels, side, side), 7).eval()
        assert network(torch.zeros(2, channels, side, side)).shape == (2, 7)
