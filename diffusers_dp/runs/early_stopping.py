# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Early stopping of a generator by noisy answers alone (DP-MEPF, Section 4): which of those on the way is released."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from ..models import OneStepGenerator
from ..pipelines import DPImagePipeline
from ..queries.mean_features import FeatureMap, moments
from .run import TrainingRun


SNAPSHOT, PROXIES = "snapshot", "snapshots.jsonl"


class EarlyStopping:
    """
    Compares a generator with the noisy stopping answers every few steps, and keeps the nearest. The real images are
    not looked at: their answers got their noise at the door, and all that happens here is post-processing.

    The nearest generator and the distances of all lie in `private/`.

    Args:
        run (`TrainingRun`): Whose generator it is.
        pipeline (`DPImagePipeline`): The generator that is being fitted.
        answers (sequence of `torch.Tensor` of shape `[classes, D]`): Noisy, one for each moment.
        feature_map (`FeatureMap`): What they are answers about.
        num_steps (`int`): Between two generators to compare.
        num_images (`int`), batch_size (`int`): Images that each of them draws, and how many at once.
    """

    def __init__(
        self,
        run: TrainingRun[Any],
        pipeline: DPImagePipeline,
        answers: Sequence[torch.Tensor],
        feature_map: FeatureMap,
        *,
        num_steps: int,
        num_images: int,
        batch_size: int,
    ):
        self._run, self._pipeline, self._target = run, pipeline, torch.cat(list(answers), 1)
        self._features = moments(feature_map, len(answers))
        self._num_steps, self._batch_size = num_steps, batch_size
        self._labels = run.processes.rows(num_images) % len(self._target)
        self._best: dict[str, torch.Tensor] = {}
        self.distances: dict[int, float] = {}

    @torch.no_grad()
    def __call__(self, step: int) -> None:
        """After a step of the generator: compares it, where it is its turn."""
        if step % self._num_steps:
            return
        generator = OneStepGenerator(self._pipeline.unet, self._pipeline.config.patch_size)
        total = torch.zeros_like(self._target)
        for labels in self._labels.split(self._batch_size):
            total.index_add_(0, labels, self._features(generator.draw(labels)))
        mean = self._run.processes.mean_of_all(total / len(self._labels), len(self._labels))
        distance = (self._target - mean).square().sum().item()
        if distance < min(self.distances.values(), default=float("inf")):
            weights = self._pipeline.unet.state_dict()
            self._best = {name: tensor.cpu().clone() for name, tensor in weights.items()}
            self._run.keep(SNAPSHOT, self._pipeline)
        self.distances[step] = distance
        lines = [json.dumps({"step": step, "distance": value}) for step, value in self.distances.items()]
        path = self._run.folder.private / PROXIES
        self._run.processes.on_first(lambda: path.write_text("\n".join(lines) + "\n", encoding="utf-8"))

    def choose(self) -> dict[str, int]:
        """Puts the nearest generator in the place of the last one; which step it is of, for the receipt."""
        if not self._best:  # fewer steps than there are between two
            return {}
        self._pipeline.unet.load_state_dict(self._best)
        return {"chosen_step": min(self.distances, key=lambda step: self.distances[step])}
