# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Comparison of model rankings on synthetic and on real images (Ghalebikesabi et al. 2023, Section 6).

Users with only synthetic images try many models on them and choose the best. Here all are trained on synthetic images
and ranked twice: by accuracy on held-out synthetic images, and on real test images.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from ..distributed.worker_pool import WorkerPool
from .classifiers import (
    Classifier,
    LogisticRegressionClassifier,
    NetworkClassifier,
    PerceptronClassifier,
    split_for_training,
)
from .images import ImageSet
from .measurement import Measurement
from .networks import SmallCNN, training_of
from .utility import PER_CENT


INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1.0)
HIDDEN_UNITS = (8, 32, 128)
CNN_WIDTHS = (4, 8, 16)


def compare_rankings(
    names: Sequence[str], synthetic: Sequence[float], real: Sequence[float], protocol: dict[str, Any]
) -> list[Measurement]:
    """Compares accuracies of the same models on synthetic and on real images, in per cent.

    Args:
        names (sequence of `str`): Names of the models.
        synthetic, real (sequences of `float`): Accuracies on held-out synthetic images, and on real test images.
        protocol (`dict`): How the models were trained.

    Returns:
        `list[Measurement]`: Spearman's correlation, unless all models are equally good in one of the rankings. Whether
            the model that is best on synthetic images (the first of equals, so that real images play no role) is best
            on real ones, 1 or 0. And its regret: how many points it is below the best one there.
    """
    chosen = int(np.argmax(synthetic))
    regret = max(real) - real[chosen]
    facts = {
        **protocol, "models": list(names), "accuracy_on_synthetic": list(synthetic), "accuracy_on_real": list(real),
        "chosen_on_synthetic": names[chosen],
    }  # fmt: skip
    rows = [
        Measurement("model selection: top-1 agrees", float(regret == 0), facts),
        Measurement("model selection: regret", regret, {**facts, "unit": "percentage points"}),
    ]
    if len(set(synthetic)) > 1 and len(set(real)) > 1:
        correlation = float(spearmanr(synthetic, real).statistic)
        rows.insert(0, Measurement("model selection: Spearman correlation", correlation, facts))
    return rows


def measure_model_selection(
    synthetic: ImageSet,
    real_test: ImageSet,
    *,
    seed: int = 0,
    epochs: int | None = None,
    device: torch.device | str = "cpu",
    pool: WorkerPool | None = None,
) -> list[Measurement]:
    """Trains a fixed list of models on synthetic images, and compares their ranking on synthetic and on real images.

    The list has logistic regression with four penalties, an MLP of three sizes, and the small CNN of three widths. The
    last epoch is used because the held-out images only rank the models.

    Args:
        synthetic (`ImageSet`): Labelled synthetic images, split by `split_for_training`.
        real_test (`ImageSet`): Labelled test images.
        seed (`int`, defaults to 0): Seed of all trainings.
        epochs (`int`, *optional*): Number of epochs of the MLPs and CNNs, instead of their default.
        device (`str` or `torch.device`, defaults to `"cpu"`): Device of the CNNs.
        pool (`WorkerPool`, *optional*): Processes that share the models.
    """
    train, held_out = split_for_training(synthetic)
    channels, height, width = synthetic.images.shape[1:]
    models = candidates((channels, height, width), seed=seed, epochs=epochs, device=device)
    work = functools.partial(_accuracies, train, (held_out, real_test))
    accuracies = list((pool or WorkerPool()).map(work, list(models.values())))
    on_synthetic, on_real = zip(*accuracies, strict=True)
    protocol = {
        "num_train": len(train), "num_validation": len(held_out), "num_test": len(real_test), "seed": seed,
        "epochs": epochs, "selection": "last",
    }  # fmt: skip
    return compare_rankings(list(models), on_synthetic, on_real, protocol)


def candidates(
    image_shape: tuple[int, int, int], *, seed: int, epochs: int | None, device: torch.device | str
) -> dict[str, Callable[[], Classifier]]:
    """Returns the fixed list of models, by name."""
    training = training_of("cnn", image_shape, epochs)
    models: dict[str, Callable[[], Classifier]] = {}
    for c in INVERSE_PENALTIES:
        models[f"logreg, C = {c:g}"] = functools.partial(LogisticRegressionClassifier, seed=seed, c=c)
    for hidden in HIDDEN_UNITS:
        models[f"mlp, {hidden} units"] = functools.partial(
            PerceptronClassifier, seed=seed, epochs=epochs, hidden=hidden
        )
    for channels in CNN_WIDTHS:
        models[f"cnn, width {channels}"] = functools.partial(
            NetworkClassifier, "cnn", functools.partial(SmallCNN, width=channels), training, seed=seed, device=device
        )
    return models


def _accuracies(train: ImageSet, sets: Sequence[ImageSet], build: Callable[[], Classifier]) -> tuple[float, ...]:
    classifier = build().fit(train)
    return tuple(PER_CENT * float((classifier.predict(images.images) == images.labels).mean()) for images in sets)
