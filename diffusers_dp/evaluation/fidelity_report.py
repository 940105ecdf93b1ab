# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Fidelity of synthetic images: the metrics of the published tables in one feature space, each with its protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import fidelity
from .extractors import FeatureCache, FeatureExtractor
from .feature_likelihood import FIT, LIKELIHOOD_IMAGES, feature_likelihood_divergence
from .images import ImageSet
from .measurement import OF_HALVES, Measurement


FRECHET_IMAGES = 50_000  # number of synthetic images, as published
#: Number of real and of synthetic images in metrics that compare all pairs, if no published table uses all images.
PAIRED_IMAGES = 10_000
#: The same for FLD, which fits its density to all pairs up to 50 times; this takes a quarter of the time on a CPU.
PAIRED_LIKELIHOOD_IMAGES = 5_000


@dataclass(frozen=True)
class FeatureSpace:
    """Images to compare, in the features of one extractor.

    With the published Inception features, names and counts are those of the published tables (FETA-Pro Appendix C.3).
    The Fréchet distance uses 50,000 shuffled synthetic images, precision and recall all images, FLD 10,000 synthetic
    ones. With other features, precision and recall use 10,000 real and synthetic images each, FLD 5,000. The protocol
    contains every count.

    Args:
        extractor (`FeatureExtractor`): Feature space.
        sets (`dict[str, ImageSet]`): Sets `synthetic` and `real training`, optionally `real test`.
        seed (`int`): Seed of every shuffle and subset.
        cache (`FeatureCache`): Store of features.
        device (`str`, defaults to `"cpu"`): Device for comparing pairs of images.
    """

    extractor: FeatureExtractor
    sets: Mapping[str, ImageSet]
    seed: int
    cache: FeatureCache
    device: str = "cpu"

    def features(self, name: str) -> np.ndarray:
        """Maps a set to features `[n, D]`. Raises `UsageError` unless they are finite."""
        features = self.cache.features(self.extractor, self.sets[name].images)
        fidelity.check_features(features, name)
        return features

    @cached_property
    def real(self) -> np.ndarray:
        return self.features("real training")

    @cached_property
    def synthetic(self) -> np.ndarray:
        return self.features("synthetic")

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
        return {"extractor": self.extractor.name, "features": self.extractor.facts} | counts | more


def measure_fid(space: FeatureSpace) -> list[Measurement]:
    synthetic = space.draw(space.synthetic, FRECHET_IMAGES)
    # Too few images of a network's features are refused. Pixels have many dimensions and no table to compare with.
    # Halves of the real images are measured alike.
    shrink = space.extractor.name == "pixels" and min(len(space.real) // 2, len(synthetic)) <= space.real.shape[1]
    distance = fidelity.frechet_distance(space.real, synthetic, shrink=shrink)
    protocol = space.protocol(space.real, synthetic, covariance="Ledoit-Wolf" if shrink else "unbiased")
    mixed, half = space.draw(space.real, len(space.real)), len(space.real) // 2
    if half > 1 and (shrink or half > space.real.shape[1]):
        protocol[OF_HALVES] = fidelity.frechet_distance(mixed[:half], mixed[half : 2 * half], shrink=shrink)
    return [Measurement(space.extractor.frechet_name, distance, protocol)]


def measure_inception_score(space: FeatureSpace) -> list[Measurement]:
    probabilities = space.cache.probabilities(space.extractor, space.sets["synthetic"].images)
    fidelity.check_features(probabilities, "synthetic")
    protocol = space.protocol(space.real[:0], probabilities, classes=probabilities.shape[1], splits=1)
    return [Measurement(space.name("Inception Score", "score"), fidelity.inception_score(probabilities), protocol)]


def measure_precision_recall(space: FeatureSpace) -> list[Measurement]:
    real, synthetic = space.real, space.synthetic
    if not space.published:
        real, synthetic = (space.draw(features, PAIRED_IMAGES) for features in (real, synthetic))
    protocol = space.protocol(real, synthetic, k=fidelity.NEIGHBOURS, neighbours="without the image itself")
    values = fidelity.precision_recall(real, synthetic, device=space.device)
    names = (space.name("precision", "precision"), space.name("recall", "recall"))
    return [Measurement(name, value, protocol) for name, value in zip(names, values, strict=True)]


def measure_fld(space: FeatureSpace) -> list[Measurement]:
    real, synthetic, test = space.real, space.draw(space.synthetic, LIKELIHOOD_IMAGES), space.features("real test")
    if not space.published:
        real, synthetic = (space.draw(each, PAIRED_LIKELIHOOD_IMAGES) for each in (space.real, space.synthetic))
    value = feature_likelihood_divergence(real, test, synthetic, seed=space.seed, device=space.device)
    protocol = space.protocol(real, synthetic, real_test_images=len(test), judged_on="real training images", fit=FIT)
    return [Measurement(space.name("FLD", "feature likelihood divergence"), value, protocol)]
