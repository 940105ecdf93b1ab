# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Utility: classifiers trained on synthetic images and tested on real ones (FETA-Pro, Appendix C.3; Ghalebikesabi et
al. 2023, Sections 5.1 and 5.6).

The numbers come from real test images without any accounting, so they are private if the test images are.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .classifiers import build_classifier, required_labels, split_for_training
from .images import ImageSet
from .measurement import Measurement


PER_CENT = 100.0


class Utility(NamedTuple):
    """An accuracy in per cent, and its counts.

    Args:
        accuracy (`Measurement`): Mean over seeds.
        confusion (`np.ndarray` of int64, shape `[classes, classes]`): Counts of test images by true (row) and
            predicted class (column), summed over seeds.
    """

    accuracy: Measurement
    confusion: np.ndarray


def measure_utility(
    synthetic: ImageSet, real_test: ImageSet, *, classifiers: Sequence[str], seeds: Sequence[int] = (0,),
    sizes: Sequence[int | None] = (None,), ensemble: int = 1, validation: ImageSet | None = None,
    epochs: int | None = None, cifar: bool = False, device: torch.device | str = "cpu", trained_on: str = "synthetic",
) -> list[Utility]:  # fmt: skip
    """Measures the accuracy on real test images of classifiers trained on synthetic images.

    The standard error is that over seeds (training) if there are several, otherwise the binomial one of the test
    images. The protocol states which, and always contains the binomial one.

    Args:
        synthetic (`ImageSet`): Labelled synthetic images, split by `split_for_training`. Real images for an upper
            bound without privacy (DPImageBench draws their split with torch).
        real_test (`ImageSet`): Labelled test images of the same classes, not used for any choice.
        classifiers (sequence of `str`): Names, see `build_classifier`.
        seeds (sequence of `int`, defaults to `(0,)`): Seeds of trainings from scratch. A classifier that does not
            depend on the seed is fitted once.
        sizes (sequence of `int`, *optional*): Numbers of synthetic images, each measured separately; `None`: all.
        ensemble (`int`, defaults to 1): Number of classifiers per seed, with different sub-seeds, whose probabilities
            are averaged (Ghalebikesabi et al., Section 5.6).
        validation (`ImageSet`, *optional*): Labelled real images that choose the epoch, without noise, as in the
            published tables; defaults to the held-out synthetic images.
        epochs, cifar, device: See `build_classifier`.
        trained_on (`str`, defaults to `"synthetic"`): Name of the training images in protocols and errors.

    Returns:
        `list[Utility]`: One for each classifier and size.
    """
    common: dict[str, Any] = {
        "trained_on": trained_on, "tested_on": "real", "num_test": len(real_test), "ensemble": ensemble,
        "selection": "synthetic" if validation is None else "validation",
    }  # fmt: skip
    channels, height, width = synthetic.images.shape[1:]
    found = []
    for size in sizes:
        train, held_out = split_for_training(synthetic, size)
        for name in classifiers:
            scores: dict[int, Any] = {}  # by seed, the sum over the members of an ensemble
            of_fits = []
            for seed, member in itertools.product(seeds, range(ensemble)):
                classifier = build_classifier(
                    name, image_shape=(channels, height, width), seed=seed * ensemble + member, epochs=epochs,
                    cifar=cifar, device=device,
                )  # fmt: skip
                if scores and classifier.repeatable:
                    continue
                classifier.fit(train, held_out if validation is None else validation)
                scores[seed] = scores.get(seed, 0.0) + classifier.scores(real_test.images)
                of_fits.append(classifier.protocol)
            protocol = {
                **common, **of_fits[0],
                "chosen_epochs": [each["chosen_epoch"] for each in of_fits if "chosen_epoch" in each],
                "num_train": len(train), "num_validation": len(held_out), "seeds": list(scores),
            }  # fmt: skip
            protocol.pop("chosen_epoch", None)
            found.append(score_predictions([total.argmax(1) for total in scores.values()], real_test, protocol))
    return found


def score_predictions(predicted: Sequence[np.ndarray], real_test: ImageSet, protocol: dict[str, Any]) -> Utility:
    """Counts the predictions for the test images; `predicted` has int64 arrays of shape `[n]`, one per seed."""
    labels, classes = required_labels(real_test), len(real_test.class_names or ())
    confusion, seeds, count = np.zeros((classes, classes), dtype=np.int64), len(predicted), len(labels)
    for of_one in predicted:  # scikit-learn's function would print a warning about a single class
        np.add.at(confusion, (labels, of_one), 1)
    accuracies = [PER_CENT * float((of_one == labels).mean()) for of_one in predicted]
    value = float(np.mean(accuracies))
    binomial = error = math.sqrt(value * (PER_CENT - value) / count)
    error_of = f"the draw of {count} test images"
    if seeds > 1:
        error, error_of = float(np.std(accuracies, ddof=1)) / math.sqrt(seeds), f"{seeds} seeds"
    facts = {"unit": "%", "standard_error_of": error_of, "standard_error_of_test_images": binomial}
    return Utility(Measurement("accuracy", value, protocol | facts, error), confusion)
