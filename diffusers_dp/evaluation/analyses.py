# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Everything that an evaluation can measure, one entry each: a new metric is a function and a line here. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


LOWER, HIGHER = "lower is better", "higher is better"
NO_LABELS = "needs labelled images, real and synthetic; name their column with --label_column"
WITH_PROBABILITIES = ("classifier", "inception")
NO_PROBABILITIES = f"needs class probabilities, which only features of {' and '.join(WITH_PROBABILITIES)} have"
ONE_CLASS = "needs real training images of two classes at least"
NO_TEST = "needs real test images; name a split of --real with --test_split"


@dataclass(frozen=True)
class AvailableImages:
    """What is known of the images before they are compared; `None`: not yet.

    Args:
        synthetic (`int`): Number of synthetic images.
        labelled (`bool`): Whether all that were read have labels.
        has_test (`bool`): Whether there is a real test split.
        dimensions (`dict[str, int]`): Dimensions of the features of networks.
        test, real (`int`, *optional*): Numbers of real test and training images.
        classes (`int`, *optional*): Number of classes that real training images are of.
    """

    synthetic: int
    labelled: bool
    has_test: bool
    dimensions: dict[str, int] = field(default_factory=dict)
    test: int | None = None
    real: int | None = None
    classes: int | None = None

    def too_few(self, *, real: int = 1, synthetic: int = 1, test: int = 0) -> str | None:
        """Says that there are fewer images than these; how many real ones there are is nobody's business."""
        if self.synthetic < synthetic:
            return f"needs {synthetic} synthetic images, and there are {self.synthetic}"
        for needed, count, whose in ((real, self.real, "training"), (test, self.test, "test")):
            if count is not None and count < needed:
                return f"needs {needed} real {whose} images, and there are fewer"
        return None


@dataclass(frozen=True)
class Analysis:
    """One thing that an evaluation can measure.

    Args:
        name (`str`): Its identity: a value of `--metrics`, or the flag that asks for it.
        measure (`str`): `module:function` that returns its measurements. By features it takes a `FeatureSpace`, else
            the `Evaluator`.
        needs (`Callable`, *optional*): Function of `AvailableImages` and a feature space's name that says what is
            missing, as the end of a sentence, or returns `None`.
        heading (`str`): Heading of its numbers on the page, with fields of their protocol.
        titles (`dict[str, str]`): Its metrics, without a feature space in brackets: `LOWER`,
            `HIGHER`, or nothing if neither is better.
        by_features (`bool`): Whether it is measured in each feature space.
    """

    name: str
    measure: str
    needs: Callable[[AvailableImages, str], str | None] = lambda known, extractor: None
    heading: str = "Fidelity: features of {extractor}"
    titles: Mapping[str, str] = field(default_factory=dict)
    by_features: bool = False


def function_of(name: str) -> Callable[..., Any]:
    """Loads the function that `module:function` names."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), function)


def fid_needs(known: AvailableImages, extractor: str) -> str | None:
    fewest = known.dimensions.get(extractor, 1) + 1  # too few pixels have their covariance shrunk
    return known.too_few(real=fewest, synthetic=fewest)


def classifiers_need(known: AvailableImages, extractor: str) -> str | None:
    if not known.labelled:
        return NO_LABELS
    return known.too_few(synthetic=2, real=2, test=1) if known.has_test else NO_TEST


#: All analyses by name, in the order of the report.
ANALYSES = {
    each.name: each
    for each in (
        Analysis(
            "fid", "fidelity_report:measure_fid", fid_needs, by_features=True,
            titles={"FID": LOWER, "Fréchet distance": LOWER},
        ),
        Analysis(
            "inception_score", "fidelity_report:measure_inception_score",
            lambda known, extractor: None if extractor in WITH_PROBABILITIES else NO_PROBABILITIES, by_features=True,
            titles={"Inception Score": HIGHER, "score": HIGHER},
        ),
        Analysis(
            "precision_recall", "fidelity_report:measure_precision_recall",
            lambda known, _: known.too_few(real=4, synthetic=4),  # 3 neighbours beside the image itself
            by_features=True, titles={"precision": HIGHER, "recall": HIGHER},
        ),
        Analysis(
            "fld", "fidelity_report:measure_fld",
            lambda known, _: known.too_few(real=4, test=2) if known.has_test else NO_TEST, by_features=True,
            titles={"FLD": LOWER, "feature likelihood divergence": LOWER},
        ),
        Analysis(
            "classifiers", "judging:utility", classifiers_need, "Utility: {classifier}, tested on real images",
            titles={"accuracy": HIGHER},
        ),
    )
}  # fmt: skip
#: What `--metrics` names.
METRICS = tuple(each.name for each in ANALYSES.values() if each.by_features)
#: The better direction of metrics by title, also of those that a receipt contains.
BETTER = {title: better for each in ANALYSES.values() for title, better in each.titles.items()} | dict.fromkeys(
    ("first moment distance", "second moment distance"), LOWER
)
