# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Fidelity of synthetic images: the metrics of the published tables in one feature space, each with its protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError
from . import fidelity
from .extractors import FeatureExtractor
from .feature_cache import FeatureCache
from .feature_likelihood import LIKELIHOOD_IMAGES, feature_likelihood_divergence
from .images import ImageSet, copies_warning
from .measurement import Measurement


FRECHET_IMAGES = 50_000  # number of synthetic images, as published
#: Number of real and of synthetic images in metrics that compare all pairs, if no published table uses all images.
PAIRED_IMAGES = 10_000
#: The same for FLD, which fits its density to all pairs 50 times; this takes a quarter of the time on a CPU.
PAIRED_LIKELIHOOD_IMAGES = 5_000


@dataclass(frozen=True)
class _Material:
    """The inputs for the metrics of one report."""

    extractor: FeatureExtractor
    cache: FeatureCache
    real_set: ImageSet
    synthetic_set: ImageSet
    real: np.ndarray
    synthetic: np.ndarray
    test: np.ndarray | None
    seed: int
    device: str
    warning: str | None

    @property
    def published(self) -> bool:
        """Whether the features are those of the published tables, so that their names and counts apply."""
        return self.extractor.frechet_name == "FID"

    def name(self, published: str, own: str) -> str:
        return published if self.published else f"{own} ({self.extractor.name})"

    def draw(self, features: np.ndarray, count: int) -> np.ndarray:
        """Draws at most `count` rows, shuffled by the seed."""
        return features[np.random.default_rng(self.seed).permutation(len(features))[:count]]

    def protocol(self, real: np.ndarray, synthetic: np.ndarray, **more: Any) -> dict[str, Any]:
        counts = {"real_images": len(real), "synthetic_images": len(synthetic), "seed": self.seed}
        facts = {"extractor": self.extractor.name, "features": self.extractor.facts}
        return facts | counts | more | ({"warning": self.warning} if self.warning else {})


def measure(
    extractor: FeatureExtractor,
    real_train: ImageSet,
    synthetic: ImageSet,
    real_test: ImageSet | None,
    *,
    metrics: Sequence[str],
    seed: int,
    cache: FeatureCache,
    device: str = "cpu",
) -> list[Measurement]:
    """Measures the fidelity of synthetic images in one feature space. It reads real images, so results are private
    unless these are declared public.

    With the published Inception features, names and counts are those of the published tables (FETA-Pro Appendix C.3).
    The Fréchet distance uses 50,000 shuffled synthetic images, precision and recall all images, FLD 10,000 synthetic
    ones. With other features, precision and recall use 10,000 real and synthetic images each, FLD 5,000. The protocol
    contains every count.

    Args:
        extractor (`FeatureExtractor`): Feature space.
        real_train, synthetic (`ImageSet`): Reference without the validation images, and evaluated images.
        real_test (`ImageSet`, *optional*): Test images, for FLD.
        metrics (`Sequence[str]`): Names from `METRICS`. `inception_score` is left out for an extractor without class
            probabilities.
        seed (`int`): Seed of every shuffle and subset.
        cache (`FeatureCache`): Store of features.
        device (`str`, defaults to `"cpu"`): Device for comparing pairs of images.

    Returns:
        `list[Measurement]`: Measurements in the order of `metrics`, with `protocol["warning"]` if synthetic images are
            copies of real ones.

    Raises:
        UsageError: A metric is unknown, shapes differ, a set is empty, `class_fid` has no labels, `fld` has no test
            images, there are too few images, or features are not finite.
    """
    for metric in metrics:
        if metric not in METRICS:
            raise UsageError(f"--metrics holds '{metric}', which is none of {', '.join(METRICS)}.")
    check_same_shape(real_train, synthetic, "synthetic")
    if "fld" in metrics and real_test is None:
        raise UsageError(
            "FLD needs real test images: name a dataset with a test split by --real, or leave fld out of --metrics."
        )
    if real_test is not None:
        check_same_shape(real_train, real_test, "real test")
    real = cache.features(extractor, real_train.images)
    judged = cache.features(extractor, synthetic.images)
    material = _Material(
        extractor=extractor,
        cache=cache,
        real_set=real_train,
        synthetic_set=synthetic,
        real=real,
        synthetic=judged,
        test=cache.features(extractor, real_test.images) if real_test is not None and "fld" in metrics else None,
        seed=seed,
        device="cpu" if device.startswith("mps") else device,  # mps has no float64
        warning=copies_warning(synthetic, real_train, "training"),
    )
    return [measurement for metric in metrics for measurement in METRICS[metric](material)]


def measure_domain(
    extractor: FeatureExtractor,
    private: ImageSet,
    public: ImageSet,
    synthetic: ImageSet,
    *,
    seed: int,
    cache: FeatureCache,
) -> list[Measurement]:
    """Measures whether images are closer to the private set or to the public one. See `fidelity.domain_discriminator`.

    Returns:
        `list[Measurement]`: Share of synthetic images classified as private, with its standard error, and the accuracy
            of the discriminator, which is needed to interpret the share.

    Raises:
        UsageError: Shapes differ, there are too few images, or features are not finite.
    """
    check_same_shape(private, public, "public")
    check_same_shape(private, synthetic, "synthetic")
    judgement = fidelity.domain_discriminator(
        *(cache.features(extractor, images.images) for images in (private, public, synthetic)), seed=seed
    )
    protocol = {
        "extractor": extractor.name,
        "features": extractor.facts,
        "classifier": "logistic regression on standardised features",
        "images_per_domain": judgement.images_per_domain,
        "synthetic_images": len(synthetic),
        "public_origin": public.origin,
        "seed": seed,
    }
    error = judgement.share_private_error
    return [
        Measurement(f"share taken for private images ({extractor.name})", judgement.share_private, protocol, error),
        Measurement(
            f"accuracy of the domain discriminator ({extractor.name})",
            judgement.accuracy,
            protocol | {"folds": fidelity.DOMAIN_FOLDS, "chance": 0.5},
        ),
    ]


def check_same_shape(reference: ImageSet, images: ImageSet, whose: str) -> None:
    """Raises `UsageError` unless both sets have images, with equal channels and sizes."""
    for one, name in ((reference, "real"), (images, whose)):
        if not len(one):
            raise UsageError(
                f"There is no {name} image: look at the path and the split that --real and --images name."
            )
    expected, found = reference.images.shape[1:], images.images.shape[1:]
    if expected != found:
        raise UsageError(
            f"The {whose} images have {found[0]} channels of {found[1]}x{found[2]} pixels and the real ones "
            f"{expected[0]} of {expected[1]}x{expected[2]}: give --resize, which makes all fit the synthetic ones."
        )


def _fid(m: _Material) -> list[Measurement]:
    synthetic = m.draw(m.synthetic, FRECHET_IMAGES)
    # Too few images of a network's features are refused. Pixels have many dimensions and no table to compare with.
    shrink = m.extractor.name == "pixels" and min(len(m.real), len(synthetic)) <= m.real.shape[1]
    distance = fidelity.frechet_distance(m.real, synthetic, shrink=shrink)
    protocol = m.protocol(m.real, synthetic, covariance=distance.covariance)
    return [Measurement(m.extractor.frechet_name, distance.value, protocol)]


def _kid(m: _Material) -> list[Measurement]:
    distance = fidelity.kernel_distance(m.real, m.synthetic, seed=m.seed)
    more = {"kernel": "(x.y / D + 1)^3", "subsets": fidelity.KERNEL_SUBSETS, "subset_size": distance.subset_size}
    protocol = m.protocol(m.real, m.synthetic, **more, standard_error_of="the draw of the subsets")
    return [Measurement(m.name("KID", "kernel distance"), distance.value, protocol, distance.standard_error)]


def _inception_score(m: _Material) -> list[Measurement]:
    probabilities = m.cache.probabilities(m.extractor, m.synthetic_set.images)
    if probabilities is None:
        return []
    protocol = m.protocol(m.real[:0], probabilities, classes=probabilities.shape[1], splits=1)
    return [Measurement(m.name("Inception Score", "score"), fidelity.inception_score(probabilities), protocol)]


def _precision_recall(m: _Material) -> list[Measurement]:
    real, synthetic = m.real, m.synthetic
    if not m.published:
        real, synthetic = (m.draw(features, PAIRED_IMAGES) for features in (real, synthetic))
    protocol = m.protocol(real, synthetic, k=fidelity.NEIGHBOURS, neighbours="without the image itself")
    values = fidelity.precision_recall(real, synthetic, device=m.device)
    names = (m.name("precision", "precision"), m.name("recall", "recall"))
    return [Measurement(name, value, protocol) for name, value in zip(names, values, strict=True)]


def _fld(m: _Material) -> list[Measurement]:
    assert m.test is not None  # `measure` checked this
    real, synthetic = m.real, m.draw(m.synthetic, LIKELIHOOD_IMAGES)
    if not m.published:
        real, synthetic = (m.draw(features, PAIRED_LIKELIHOOD_IMAGES) for features in (m.real, m.synthetic))
    value = feature_likelihood_divergence(real, m.test, synthetic, seed=m.seed, device=m.device)
    protocol = m.protocol(real, synthetic, real_test_images=len(m.test), judged_on="real training images")
    return [Measurement(m.name("FLD", "feature likelihood divergence"), value, protocol)]


def _class_fid(m: _Material) -> list[Measurement]:
    real_labels, labels, names = m.real_set.labels, m.synthetic_set.labels, m.real_set.class_names
    if real_labels is None or labels is None or names is None:
        whose = "real" if real_labels is None or names is None else "synthetic"
        raise UsageError(
            f"The {whose} images have no labels, and class_fid compares class by class: give --label_column, or leave "
            "class_fid out of --metrics."
        )
    if m.synthetic_set.class_names not in (None, names):
        raise UsageError(
            f"The synthetic images have the classes {m.synthetic_set.class_names} and the real ones {names}: give "
            "--class_names in the order of the real ones."
        )
    found = fidelity.class_frechet_distances(m.real, real_labels, m.synthetic, labels, names)
    counts = {name: (int((real_labels == i).sum()), int((labels == i).sum())) for i, name in enumerate(names)}
    left_out = [name for name in names if name not in found]
    never = [name for name in names if counts[name][1] == 0]
    return [
        Measurement(
            f"{m.extractor.frechet_name} of class {name}",
            distance.value,
            m.protocol(m.real, m.synthetic, covariance=distance.covariance)
            | {"class": name, "real_images": counts[name][0], "synthetic_images": counts[name][1]},
        )
        for name, distance in found.items()
    ] + [
        Measurement(
            f"classes that cannot be compared ({m.extractor.name})",
            float(len(left_out)),
            m.protocol(m.real, m.synthetic, needed_of_both=2, classes=left_out, never_generated=never),
        )
    ] * bool(left_out)


#: Metrics for `--metrics`, with the functions that compute them.
METRICS: dict[str, Callable[[_Material], list[Measurement]]] = {
    "fid": _fid,
    "kid": _kid,
    "inception_score": _inception_score,
    "precision_recall": _precision_recall,
    "fld": _fld,
    "class_fid": _class_fid,
}
