# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Early stopping of a generator by noisy answers alone (DP-MEPF, Section 4): which of those on the way is released."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..distributed.processes import Processes
from ..models.feature_generator import FeatureGenerator
from ..models.one_step import OneStepGenerator
from ..queries.mean_features import FeatureMap, moments


PROXIES = "snapshots.jsonl"


@dataclass
class EarlyStopping:
    """
    Compares a generator with the noisy stopping answers every few steps, and keeps the nearest. The real images are
    not looked at: their answers got their noise at the door, and all that happens here is post-processing.

    The distances of all lie in `private/`.

    Args:
        generator (`OneStepGenerator` or `FeatureGenerator`): The generator that is being fitted.
        answers (sequence of `torch.Tensor` of shape `[classes, D]`): Noisy, one for each moment.
        feature_map (`FeatureMap`): What they are answers about.
        num_steps (`int`): Between two generators to compare.
        num_images (`int`), batch_size (`int`): Images that each of them draws, and how many at once.
        processes (`Processes`): Processes of the run.
        private (`Path`): Its private folder.
    """

    generator: OneStepGenerator | FeatureGenerator
    answers: Sequence[torch.Tensor]
    feature_map: FeatureMap
    num_steps: int
    num_images: int
    batch_size: int
    processes: Processes
    private: Path

    def __post_init__(self) -> None:
        self._target = torch.cat(list(self.answers), 1)
        self._module = self.generator.unet if isinstance(self.generator, OneStepGenerator) else self.generator
        self._features = moments(self.feature_map, len(self.answers))
        self._labels = self.processes.rows(self.num_images) % len(self._target)
        self._best: dict[str, torch.Tensor] = {}
        self.distances: dict[int, float] = {}

    @torch.no_grad()
    def __call__(self, step: int) -> None:
        """After a step of the generator: compares it, where it is its turn."""
        if step % self.num_steps:
            return
        total = torch.zeros_like(self._target)
        self._module.eval()
        for labels in self._labels.split(self.batch_size):
            total.index_add_(0, labels, self._features(self.generator.draw(labels)))
        self._module.train()
        mean = self.processes.mean_of_all(total / len(self._labels), len(self._labels))
        distance = (self._target - mean).square().sum().item()
        if distance < min(self.distances.values(), default=math.inf):
            self._best = {name: tensor.cpu().clone() for name, tensor in self._module.state_dict().items()}
        self.distances[step] = distance
        lines = [json.dumps({"step": step, "distance": value}) for step, value in self.distances.items()]
        path = self.private / PROXIES
        self.processes.on_first(lambda: path.write_text("\n".join(lines) + "\n", encoding="utf-8"))

    def choose(self) -> dict[str, int]:
        """Puts the nearest generator in the place of the last one; which step it is of, for the receipt."""
        if not self._best:  # fewer steps than there are between two
            return {}
        self._module.load_state_dict(self._best)
        return {"chosen_step": min(self.distances, key=lambda step: self.distances[step])}
