# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Features of a small classifier fitted on the real training images: those relevant to their labels."""

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..queries.perceptual import hash_weights
from .classifiers import num_classes_of, required_labels
from .extractors import in_batches
from .images import ImageSet


#: Fixed, so that `classifier` means the same in all reports.
STEPS = 600
BATCH_SIZE = 128
LEARNING_RATE = 2e-3
DIMENSION = 128


class FeatureCNN(nn.Module):
    """Two convolutions, a pooled 4 x 4 map, a layer of 128 units, and the classes, for images of at least 4 x 4."""

    def __init__(self, channels: int, num_classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, DIMENSION)
        self.classes = nn.Linear(DIMENSION, num_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Maps images `[n, C, H, W]` in [-1, 1] to penultimate features `[n, 128]`."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.relu(self.hidden(F.adaptive_max_pool2d(F.relu(self.conv2(x)), 4).flatten(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps images `[n, C, H, W]` in [-1, 1] to logits `[n, classes]`."""
        return self.classes(self.features(x))


class ClassifierExtractor:
    """Penultimate features of a `FeatureCNN` that the constructor fits on real images and **their labels**.

    It takes a fixed number of Adam steps from a separate seed, so the same images on the same machine give the same
    network.

    Args:
        real (`ImageSet`): Real training split, with labels.
        seed (`int`, defaults to 0): Seed of the initial weights and of the batches.
        device (`str`, defaults to `"cpu"`): Device of the network.
    """

    name = "classifier"
    frechet_name = "Fréchet distance (classifier)"

    def __init__(self, real: ImageSet, *, seed: int = 0, device: str = "cpu") -> None:
        labels = required_labels(real)
        self._device = device
        self._network = _fit(real.images, labels, num_classes_of(real), seed, device)
        self.facts: dict[str, Any] = {
            "weights": "fitted on the real training images and their labels: reads private labels where these are "
            "private",
            "weights_sha256": hash_weights(self._network),
            "fitted_on": len(real),
            "steps": STEPS,
            "batch_size": BATCH_SIZE,
            "learning_rate": LEARNING_RATE,
            "seed": seed,
            "layer": "penultimate",
            "dimension": DIMENSION,
            "preprocessing": "scaled to [-1, 1]",
        }

    def __getstate__(self) -> dict[str, Any]:
        """Prepares for another process, whose device has another number."""
        return {**vars(self), "_network": copy.deepcopy(self._network).to("cpu")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._network.to(self._device)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return in_batches(lambda batch: self._network.features(_scaled(batch, self._device)), images, 500)

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        return in_batches(lambda batch: self._network(_scaled(batch, self._device)).softmax(dim=1), images, 500)


def _fit(images: np.ndarray, labels: np.ndarray, num_classes: int, seed: int, device: str) -> FeatureCNN:
    batches = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):  # keeps the caller's random state
        torch.manual_seed(seed)
        network = FeatureCNN(images.shape[1], num_classes)
    network.to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        index = batches.integers(0, len(images), BATCH_SIZE)
        target = torch.from_numpy(labels[index]).to(device)
        optimizer.zero_grad()
        F.cross_entropy(network(_scaled(images[index], device)), target).backward()
        optimizer.step()
    return network.eval()


def _scaled(images: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(images).to(device, torch.float32) / 127.5 - 1
