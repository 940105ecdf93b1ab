# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What can be measured on the images that there are, before anything takes long: what a flag asks for and cannot be is
refused, and of what nobody asked for, the rest is measured, with a warning."""

import argparse
from dataclasses import dataclass, field

import numpy as np

from ..errors import UsageError
from ..evaluation.classifier_features import DIMENSION
from ..evaluation.extractors import Dinov2Extractor, FeatureExtractor, InceptionExtractor
from ..evaluation.fidelity import DOMAIN_FOLDS, NEIGHBOURS
from ..evaluation.images import ImageSet
from ..files.file_modes import public_files
from .evaluate_flags import METRICS


NO_LABELS = "needs labelled images, real and synthetic; name their column with --label_column"
WITH_PROBABILITIES = ("classifier", "inception")
NO_PROBABILITIES = f"needs class probabilities, which only features of {' and '.join(WITH_PROBABILITIES)} have"
NO_TEST = "needs real test images; name a split of --real with --test_split"


@dataclass(frozen=True)
class Known:
    """What is known of the images; `None`: not yet.

    Args:
        synthetic (`int`): Number of images.
        labelled (`bool`): Whether all that were read have labels.
        has_test (`bool`): Whether there is a real test split.
        dimensions (`dict[str, int]`): Of the features of networks that are loaded.
        public, test (`int`, *optional*): Numbers of images.
        real (`ImageSet`, *optional*): The real training images.
    """

    synthetic: int
    labelled: bool
    has_test: bool
    dimensions: dict[str, int] = field(default_factory=dict)
    public: int | None = None
    test: int | None = None
    real: ImageSet | None = None

    def too_few(self, *, real: int = 1, synthetic: int = 1, test: int = 0, public: int = 0) -> str | None:
        """In words, where there are fewer images than these; how many real ones there are is nobody's business."""
        for needed, count, whose in (
            (synthetic, self.synthetic, "synthetic"),
            (real, None if self.real is None else len(self.real), "real training"),
            (test, self.test, "real test"),
            (public, self.public, "public"),
        ):
            if count is not None and count < needed:
                return f"needs {needed} {whose} images, and there are {'fewer' if whose.startswith('real') else count}"
        return None


@dataclass
class Choice:
    """What is measured.

    Args:
        metrics, extractors, classifiers (`list[str]`): As flags name them.
        left_out (`list[tuple[str, str]]`): Metric and extractor that do not go together.
        warnings (`list[str]`): What was not asked for and is left out, one sentence each.
    """

    metrics: list[str]
    extractors: list[str]
    classifiers: list[str]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def measured(self) -> dict[str, list[str]]:
        """What is measured, by the names of the flags."""
        return {"metrics": self.metrics, "extractors": self.extractors, "classifiers": self.classifiers}


@public_files()  # what is downloaded is shared by all who use that cache
def load_networks(args: argparse.Namespace, device: str) -> dict[str, FeatureExtractor]:
    """Those of `--extractors` that were trained elsewhere; `UsageError` where weights are damaged or not there."""
    found: dict[str, FeatureExtractor] = {}
    for name in args.extractors or []:
        if name == "inception":
            found[name] = InceptionExtractor(args.inception_weights, device=device)
        elif name == "dinov2":
            found[name] = Dinov2Extractor(args.dinov2_model, device=device)
    return found


def choose(args: argparse.Namespace, known: Known) -> Choice:
    """What flags ask for, or all that applies where they are unset.

    Raises:
        UsageError: A flag asks for what cannot be measured on these images.
    """
    choice = Choice(list(args.metrics or METRICS), [], list(args.classifiers or []))
    _choose_extractors(args, known, choice)
    _choose_metrics(args, known, choice)
    _choose_classifiers(args, known, choice)
    if args.public_images is not None:
        folds = 2 * DOMAIN_FOLDS
        _refuse("--public_images", known.too_few(real=folds, public=folds))
    if args.training_curve:
        _refuse("--training_curve", _unfit("fid", choice.extractors[0], known))
    return choice


def _choose_extractors(args: argparse.Namespace, known: Known, choice: Choice) -> None:
    for name in args.extractors or ["pixels", "classifier"]:
        problem = None
        if name == "classifier":
            labels = None if known.real is None else known.real.labels
            if not known.labelled:
                problem = NO_LABELS
            elif labels is not None and len(np.unique(labels)) < 2:
                problem = "needs real training images of two classes at least"
        if args.extractors:
            _refuse(f"--extractors {name}", problem)
        elif problem:
            _leave_out(choice, f"features of {name}", problem)
            continue
        choice.extractors.append(name)


def _choose_metrics(args: argparse.Namespace, known: Known, choice: Choice) -> None:
    problems = {
        (metric, name): problem
        for metric in choice.metrics
        for name in choice.extractors
        if (problem := _unfit(metric, name, known))
    }
    for (metric, name), problem in problems.items():
        nowhere = all((metric, each) in problems for each in choice.extractors)
        if args.metrics and (args.extractors or nowhere):
            _refuse(f"--metrics {metric} by features of {name}", problem)
        choice.left_out.append((metric, name))
        _leave_out(choice, f"{metric} by features of {name}", problem)
    choice.metrics = [
        metric for metric in choice.metrics if any((metric, name) not in problems for name in choice.extractors)
    ]


def _unfit(metric: str, extractor: str, known: Known) -> str | None:
    """Why a metric cannot be measured in a feature space, as the end of a sentence, or `None`."""
    if metric == "inception_score" and extractor not in WITH_PROBABILITIES:
        return NO_PROBABILITIES
    if metric == "class_fid" and not known.labelled:
        return NO_LABELS
    if metric == "fld" and not known.has_test:
        return NO_TEST
    if metric == "fid":
        # Too few pixels have their covariance shrunk.
        dimension = {"pixels": 1, "classifier": DIMENSION, **known.dimensions}[extractor]
        return known.too_few(real=dimension + 1, synthetic=dimension + 1)
    if metric == "fld":
        return known.too_few(real=4, test=2)
    fewest = {"kid": 2, "precision_recall": NEIGHBOURS + 1}.get(metric, 1)
    return known.too_few(real=fewest, synthetic=fewest)


def _choose_classifiers(args: argparse.Namespace, known: Known, choice: Choice) -> None:
    problem = NO_TEST if not known.has_test else known.too_few(synthetic=2, real=2, test=1)
    problem = problem if known.labelled else NO_LABELS
    for flag, asked in (
        ("--classifiers", args.classifiers),
        ("--selection private", args.selection == "private"),
        ("--model_selection", args.model_selection),
        ("--reference", args.reference),
        ("--dp_reference", args.dp_reference),
    ):
        if asked:
            _refuse(flag, problem)
    if problem:
        _leave_out(choice, "utility", problem)
    elif not choice.classifiers:
        choice.classifiers = ["logreg", "cnn"]


def _refuse(flag: str, problem: str | None) -> None:
    if problem:
        raise UsageError(f"{flag} {problem}, or leave it out.")


def _leave_out(choice: Choice, what: str, problem: str) -> None:
    # with_classes_of says so of all that need labels; nobody misses a score of pixels.
    if problem not in (NO_LABELS, NO_PROBABILITIES):
        choice.warnings.append(f"Left out: {what}, which {problem}.")
