# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Utility: classifiers trained on synthetic images and tested on real ones (FETA-Pro, Appendix C.3; Ghalebikesabi et
al. 2023, Sections 5.1 and 5.6).

The numbers come from real test images without any accounting, so they are private if the test images are.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import UsageError, fields_named
from ..files.canonical import canonical_json
from .classifiers import Classifier, build_classifier, labels_of
from .images import ImageSet, fingerprint
from .measurement import Measurement
from .selection import check_choice, choose_privately, split_for_training


PER_CENT = 100.0
#: Protocol note for measurements with private noise.
FRESH_NOISE = "Noise is drawn afresh and from no seed: the same command in another folder gives other numbers."
NUM_CANDIDATES = 10  # epochs of a classifier in a private choice; the sensitivity grows with their number


@dataclass(frozen=True)
class PrivateSelection:
    """Real images that choose epochs, with a privacy budget: see `choose_privately`."""

    validation: ImageSet
    epsilon: float
    delta: float
    ledger_path: Path | str | None = None


@dataclass(frozen=True)
class UtilityDetails:
    """Details of one accuracy, for tables and pictures.

    Args:
        protocol (`dict`): Protocol of the accuracy.
        class_names (`tuple[str, ...]`): Names of rows and columns.
        confusion (`np.ndarray` of int64, shape `[classes, classes]`): Counts of test images by true (row) and
            predicted class (column), summed over seeds.
        accuracies (`tuple[float, ...]`): Accuracy of each seed, in per cent.
    """

    protocol: dict[str, Any]
    class_names: tuple[str, ...]
    confusion: np.ndarray
    accuracies: tuple[float, ...]

    @property
    def recall(self) -> np.ndarray:
        """Accuracy on each class, in [0, 1]; NaN for a class without test images."""
        return _share(self.confusion.diagonal(), self.confusion.sum(1))

    @property
    def precision(self) -> np.ndarray:
        """Share of correct predictions among those of a class, in [0, 1]; NaN for a class that was never predicted."""
        return _share(self.confusion.diagonal(), self.confusion.sum(0))

    def measurements(self) -> list[Measurement]:
        """Returns the accuracy, then recall and precision of each class that has them, in per cent."""
        seeds = len(self.accuracies)
        value, count = float(np.mean(self.accuracies)), int(self.confusion.sum()) // seeds
        binomial = _binomial_error(value, count)
        over_seeds = float(np.std(self.accuracies, ddof=1)) / math.sqrt(seeds) if seeds > 1 else None
        protocol = {
            **self.protocol,
            "unit": "%",
            "standard_error_of": f"the draw of {count} test images" if over_seeds is None else f"{seeds} seeds",
            "standard_error_of_test_images": binomial,
        }
        rows = [Measurement("accuracy", value, protocol, binomial if over_seeds is None else over_seeds)]
        for metric, values, counts in (
            ("recall", self.recall, self.confusion.sum(1)),  # recall of a class is the accuracy on that class
            ("precision", self.precision, self.confusion.sum(0)),
        ):
            for name, share, of in zip(self.class_names, values, counts, strict=True):
                if np.isfinite(share):
                    error = _binomial_error(PER_CENT * share, of / seeds)
                    facts = {**self.protocol, "unit": "%", "class": name, "images": int(of) // seeds}
                    rows.append(Measurement(metric, float(PER_CENT * share), facts, error))
        return rows


def measure_utility(
    synthetic: ImageSet,
    real_test: ImageSet,
    *,
    classifiers: Sequence[str],
    seeds: Sequence[int] = (0,),
    sizes: Sequence[int | None] | None = None,
    ensemble: int = 1,
    selection: str | PrivateSelection = "synthetic",
    epochs: int | None = None,
    cifar: bool = False,
    device: torch.device | str = "cpu",
    trained_on: str = "synthetic",
) -> tuple[list[Measurement], list[UtilityDetails]]:
    """Measures the accuracy on real test images of classifiers trained on synthetic images.

    The standard error is that over seeds (training) if there are several, otherwise the binomial one of the test
    images. The protocol states which, and always contains the binomial one.

    Args:
        synthetic (`ImageSet`): Labelled synthetic images, split by `split_for_training`.
        real_test (`ImageSet`): Labelled test images, not used for any choice.
        classifiers (sequence of `str`): Names, see `build_classifier`.
        seeds (sequence of `int`, defaults to `(0,)`): Seeds of trainings from scratch. A classifier that does not
            depend on the seed is fitted once.
        sizes (sequence of `int`, *optional*): Numbers of synthetic images, each measured separately; `None` for all;
            defaults to all.
        ensemble (`int`, defaults to 1): Number of classifiers per seed, with different sub-seeds, whose probabilities
            are averaged (Ghalebikesabi et al., Section 5.6).
        selection (`str` or `PrivateSelection`, defaults to `"synthetic"`): Choice of the epoch: the best one on
            held-out synthetic images, the `"last"` one, or one chosen on real validation images, for all fits by one
            private query.
        epochs, cifar, device: See `build_classifier`.
        trained_on (`str`, defaults to `"synthetic"`): Name of the training images in protocols and errors.

    Returns:
        `tuple[list[Measurement], list[UtilityDetails]]`: All numbers, and one `UtilityDetails` for each classifier and
            size.

    Raises:
        UsageError: Labels are missing or name no class, images differ in shape or classes, or a value is out of range.
    """
    synthetic, real_test = common_classes(synthetic, real_test, trained_on)
    if ensemble < 1 or not seeds:
        raise UsageError(f"--ensemble and --repetitions must be at least 1, not {ensemble} and {len(seeds)}.")
    if isinstance(selection, str) and selection not in ("synthetic", "last"):
        raise UsageError(f"--selection must be synthetic or private, not {selection!r}.")
    network_options: dict[str, Any] = {"epochs": epochs, "cifar": cifar, "device": device}
    question = None
    if isinstance(selection, PrivateSelection):
        trainings = [
            list(classifiers),
            list(seeds),
            None if sizes is None else list(sizes),
            ensemble,
            epochs,
            cifar,
            str(device),
        ]
        question = _question(synthetic, trainings, selection)
        _of_flags(check_choice, selection, question)
    fitted: Iterable[_Fit] = _fit_all(synthetic, classifiers, seeds, sizes, ensemble, selection, network_options)
    common = {
        "trained_on": trained_on, "tested_on": "real", "num_test": len(real_test), "ensemble": ensemble,
        "selection": selection if isinstance(selection, str) else "private",
    }  # fmt: skip
    if isinstance(selection, PrivateSelection):
        fitted = list(fitted)
        common["private_selection"] = _choose(fitted, selection, question)
    details = list(_score(fitted, real_test, common))
    return [row for detail in details for row in detail.measurements()], details


def reference_real(
    real_train: ImageSet, real_test: ImageSet, **options: Any
) -> tuple[list[Measurement], list[UtilityDetails]]:
    """Measures the upper bound: the same classifiers trained on real images without privacy, with epochs chosen on
    held-out real images.

    Args:
        real_train (`ImageSet`): Labelled real images, shuffled and split like synthetic ones (DPImageBench draws its
            split with torch).
        options: See `measure_utility`.
    """
    return measure_utility(real_train, real_test, **options, trained_on="real")


@dataclass(frozen=True)
class _Fit:
    classifier: Classifier
    train: ImageSet
    num_held_out: int
    seed: int


def _fit_all(
    images: ImageSet,
    classifiers: Sequence[str],
    seeds: Sequence[int],
    sizes: Sequence[int | None] | None,
    ensemble: int,
    selection: str | PrivateSelection,
    options: dict[str, Any],
) -> Iterator[_Fit]:
    """Fits one classifier after the other, for each size, classifier, seed and member of an ensemble."""
    channels, height, width = images.images.shape[1:]
    num_candidates = NUM_CANDIDATES if isinstance(selection, PrivateSelection) else 0
    for size in [None] if sizes is None else sizes:
        train, held_out = split_for_training(images, size)
        for name, seed, member in itertools.product(classifiers, seeds, range(ensemble)):
            classifier = build_classifier(
                name, image_shape=(channels, height, width), seed=seed * ensemble + member, **options
            )
            if classifier.repeatable and (seed != seeds[0] or member > 0):
                continue
            classifier.fit(train, held_out if selection == "synthetic" else None, num_candidates=num_candidates)
            yield _Fit(classifier, train, len(held_out), seed)


def _question(synthetic: ImageSet, trainings: list[Any], selection: PrivateSelection) -> str:
    """Builds the key of a private choice: the settings of the candidates, the validation images and the budget. It
    does not contain the library's source, so that a paid answer survives an update."""
    asked = [
        fingerprint(synthetic),
        trainings,
        NUM_CANDIDATES,
        fingerprint(selection.validation),
        selection.epsilon,
        selection.delta,
    ]
    return hashlib.sha256(canonical_json(asked).encode()).hexdigest()


def _choose(fitted: list[_Fit], selection: PrivateSelection, question: str | None) -> dict[str, Any]:
    """Sets each classifier to the epoch that one private query chose; returns the publishable facts."""
    several = [fit.classifier for fit in fitted if len(fit.classifier.candidates) > 1]
    groups = [[_Candidate(classifier, epoch) for epoch in classifier.candidates] for classifier in several]
    choice = _of_flags(partial(choose_privately, groups), selection, question)
    for group, chosen in zip(groups, choice.chosen, strict=True):
        group[chosen].classifier.use(group[chosen].epoch)
    return {**choice.facts, "repetition": FRESH_NOISE}


def _of_flags(ask: Callable[..., Any], selection: PrivateSelection, question: str | None) -> Any:
    with fields_named({"target_epsilon": "selection_epsilon", "target_delta": "selection_delta"}):
        return ask(
            selection.validation, epsilon=selection.epsilon, delta=selection.delta,
            ledger_path=selection.ledger_path, question=question,
        )  # fmt: skip


@dataclass(frozen=True)
class _Candidate:
    classifier: Classifier
    epoch: int

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.classifier.use(self.epoch)
        return self.classifier.predict_one_by_one(images)


def _score(fitted: Iterable[_Fit], real_test: ImageSet, common: dict[str, Any]) -> Iterator[UtilityDetails]:
    """Averages the members of an ensemble and counts over seeds. Scores each fit at once, to release its memory."""
    class_names = real_test.class_names or ()
    scores: dict[tuple[str, int], dict[int, np.ndarray]] = {}
    protocols: dict[tuple[str, int], dict[str, Any]] = {}
    for fit in fitted:
        key = fit.classifier.name, len(fit.train) + fit.num_held_out
        of_seed = scores.setdefault(key, {})
        of_seed[fit.seed] = of_seed.get(fit.seed, 0.0) + fit.classifier.scores(real_test.images)
        missing = np.setdiff1d(np.arange(len(class_names)), labels_of(fit.train))
        of_fit = dict(fit.classifier.protocol)
        epoch = of_fit.pop("chosen_epoch", None)
        protocol = protocols.setdefault(key, {**common, **of_fit, "chosen_epochs": []})
        protocol["chosen_epochs"] += [] if epoch is None else [epoch]
        protocol |= {
            "num_train": len(fit.train), "num_validation": fit.num_held_out, "seeds": list(of_seed),
            "classes_never_generated": [class_names[index] for index in missing],
        }  # fmt: skip
    for key, of_seed in scores.items():
        yield score_predictions([total.argmax(1) for total in of_seed.values()], real_test, protocols[key])


def score_predictions(
    predicted: Sequence[np.ndarray], real_test: ImageSet, protocol: dict[str, Any]
) -> UtilityDetails:
    """Counts the predictions for the test images; `predicted` has int64 arrays of shape `[n]`, one per seed."""
    labels, class_names = labels_of(real_test), real_test.class_names or ()
    confusion = np.zeros((len(class_names), len(class_names)), dtype=np.int64)
    for of_one in predicted:  # scikit-learn's function would print a warning about a single class
        np.add.at(confusion, (labels, of_one), 1)
    accuracies = tuple(PER_CENT * float((of_one == labels).mean()) for of_one in predicted)
    return UtilityDetails(protocol, class_names, confusion, accuracies)


def common_classes(train: ImageSet, test: ImageSet, trained_on: str) -> tuple[ImageSet, ImageSet]:
    """Returns both sets with the same class names.

    Raises:
        UsageError: Labels are missing or name no class, a set is empty, or images differ in shape or classes.
    """
    for images, flag, what in ((train, "--images", trained_on), (test, "--real", "real test")):
        if images.labels is None:
            raise UsageError(
                f"The {what} images of {flag} have no labels, which classifiers need: name their column with "
                "--label_column, or leave --classifiers out."
            )
        if len(images) == 0:
            raise UsageError(f"{flag} holds no image; name a source that does.")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise UsageError(
            f"The {trained_on} images are {_words(train)} and the real ones {_words(test)} (channels x height x "
            "width); give --resize."
        )
    if train.class_names and test.class_names and train.class_names != test.class_names:
        raise UsageError(
            f"--images has the classes {', '.join(train.class_names)} and --real {', '.join(test.class_names)}; give "
            "both the same with --class_names."
        )
    labels = np.concatenate([labels_of(train), labels_of(test)])
    names = train.class_names or test.class_names or tuple(map(str, range(int(labels.max()) + 1)))
    if labels.min() < 0 or labels.max() >= len(names):
        raise UsageError(f"There are labels outside the {len(names)} classes; name all classes with --class_names.")
    return replace(train, class_names=tuple(names)), replace(test, class_names=tuple(names))


def _words(images: ImageSet) -> str:
    return "x".join(map(str, images.images.shape[1:]))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _binomial_error(per_cent: float, count: float) -> float:
    share = per_cent / PER_CENT
    return PER_CENT * math.sqrt(share * (1 - share) / count)
