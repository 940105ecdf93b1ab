# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run's judge: it sees the sensitive images through its features, which are computed once."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from ..data.images import PublicFacts
from ..distributed.processes import Processes
from ..methods.judge import MOMENTUM, JudgeTraining
from ..models.judge import TEMPERATURE, JudgeFeatures, LabelJudge, new_network
from ..pipelines import DPImagePipeline
from ..privacy.sensitive import SensitiveImages
from ..randomness.private_generator import PrivateGenerator
from ..sampling.drawing import Drawing, draw_shared
from .dp_sgd import Trained


if TYPE_CHECKING:
    from .run import TrainingRun

DRAWS, DRAWS_OF_A_CLASS = 1_000, 10  # the fewest draws of a model that balance its judge: in all, and of each class


def judge_loss(
    model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
) -> torch.Tensor:
    """Cross-entropy of each row; it draws nothing."""
    assert labels is not None
    return F.cross_entropy(model(rows.flatten(1)), labels, reduction="none")


def build(training: JudgeTraining, facts: PublicFacts, device: torch.device | str) -> Trained:
    """What DP-SGD will train: see `PrivateTraining.build`."""
    features = JudgeFeatures(facts.image_shape, training.num_frequencies, training.kind)
    network = new_network(features, len(facts.class_names or ("",))).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=training.settings.learning_rate, momentum=MOMENTUM)
    return Trained(network, network, judge_loss, row_shape=features.shape, optimizer=optimizer)


def train_judge(run: "TrainingRun[Any]") -> LabelJudge | None:
    """The judge that the plan has, with no class preferred yet; `None` without it."""
    found = [query for query in run.plan.queries if isinstance(query, JudgeTraining)]
    if not found:
        return None
    facts, noise_multiplier = run.facts, run.plan.rows[found[0].name].noise_multiplier
    training = found[0].at_rate(noise_multiplier, facts.image_shape[0])
    features = JudgeFeatures(facts.image_shape, training.num_frequencies, training.kind)

    def door() -> SensitiveImages:
        mapped = run.images.map(
            features, shape=features.shape, cache=run.folder.private / "cache" / training.name,
            made_of=[run.made_of, training.facts, features.of_network], batch_size=features.images_at_once,
        )  # fmt: skip
        run.done("features of the judge")
        return mapped

    network = run.train(training, lambda: build(training, facts, run.processes.device), images=door)
    assert isinstance(network, nn.Linear)
    return LabelJudge(features, network, torch.zeros(network.out_features), TEMPERATURE[facts.image_shape[0]])


def balanced_on_draws(
    judge: LabelJudge, pipeline: DPImagePipeline, drawing: Drawing, processes: Processes
) -> LabelJudge:
    """With class biases of draws of a finished model, see `LabelJudge.balanced`. The seed is public, and so is the
    number of draws; no private image is looked at.

    Args:
        judge (`LabelJudge`): Trained.
        pipeline (`DPImagePipeline`): As it is released.
        drawing (`Drawing`): How the run draws, with classes in equal shares.
        processes (`Processes`): They share the draws.
    """
    number = max(DRAWS, DRAWS_OF_A_CLASS * len(judge.biases))
    drawing = replace(drawing, num_images=number)
    images = draw_shared(pipeline, drawing, processes, "Draws for the judge")
    labels = drawing.labels_of(range(number), pipeline.num_classes)
    return judge.balanced(torch.from_numpy(images), torch.tensor(labels))
