# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""All measurements of one report, one after the other; what is finished is kept, so that an interrupted evaluation goes on."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..output_files import write_json
from ..receipt import canonical_json, hash_source
from . import fidelity
from .classifier_features import ClassifierExtractor
from .extractors import Dinov2Extractor, FeatureExtractor, InceptionExtractor, PixelExtractor
from .feature_cache import FeatureCache
from .fidelity_report import measure, measure_domain
from .images import ImageSet, fingerprint
from .measurement import Measurement
from .report import Evaluation


MOST_POINTS = 1000  # of t-SNE, real and synthetic ones each


@dataclass(frozen=True)
class Plan:
    """What is to be measured: the flags of `diffusers-dp evaluate`.

    Args:
        metrics, extractors, classifiers (sequence of `str`): In the order of the report.
        seed (`int`): Of everything that is drawn.
        repetitions (`int`): Seeds of each classifier.
        inception_weights (`Path`, *optional*), dinov2_model (`str`): Where the networks are.
        device (`str`): Of networks.
    """

    metrics: Sequence[str]
    extractors: Sequence[str]
    classifiers: Sequence[str]
    seed: int
    repetitions: int
    inception_weights: Path | None
    dinov2_model: str
    device: str


class FinishedSteps:
    """Results by what they were made of: images, flags and code.

    Args:
        folder (`Path`): As private as the images, for the names hold hashes of them.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, name: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept result (JSON values), or that of `compute`, which is kept."""
        digest = hashlib.sha256(canonical_json({**key, "source": hash_source()}).encode()).hexdigest()
        path = self.folder / f"{name}-{digest[:32]}.json"
        if not path.is_file():  # there whole or not at all
            write_json(compute(), path)
        return json.loads(path.read_text(encoding="utf-8"))


class Evaluator:
    """Judges one set of synthetic images. It reads real images: private, unless these are declared public.

    Args:
        plan (`Plan`): What is to be measured.
        folder (`Path`): For features and finished steps; as private as the images.
        synthetic, real_train, real_test, public (`ImageSet`, the last two *optional*): Of one shape and one label set.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        synthetic: ImageSet,
        real_train: ImageSet,
        real_test: ImageSet | None,
        public: ImageSet | None,
    ):
        self.plan, self.synthetic, self.real_train, self.real_test, self.public = (
            plan,
            synthetic,
            real_train,
            real_test,
            public,
        )
        self.cache = FeatureCache(folder / "features")
        self.steps = FinishedSteps(folder / "steps")
        sets = {"synthetic": synthetic, "real_train": real_train, "real_test": real_test, "public": public}
        self._images = {name: None if images is None else fingerprint(images) for name, images in sets.items()}
        self._extractors: dict[str, FeatureExtractor] = {}

    def fill(self, evaluation: Evaluation) -> None:
        """Adds all numbers, and what has to be known to read them, to a report."""
        for name in self.plan.extractors:
            evaluation.measurements += self.fidelity(name)
        cautions = (each.protocol.get("warning") for each in evaluation.measurements)
        evaluation.warnings += dict.fromkeys(caution for caution in cautions if caution)

    def fidelity(self, name: str) -> list[Measurement]:
        """`METRICS` in one feature space, and the domain discriminator where there are public images."""
        key = {**self._images, **self._extractor_key(name), "metrics": list(self.plan.metrics)}

        def compute() -> dict[str, Any]:
            extractor = self.extractor(name)
            found = measure(
                extractor, self.real_train, self.synthetic, self.real_test, metrics=self.plan.metrics, seed=self.plan.seed,
                cache=self.cache, device=self.plan.device,
            )  # fmt: skip
            if self.public is not None:
                found += measure_domain(
                    extractor, self.real_train, self.public, self.synthetic, seed=self.plan.seed, cache=self.cache
                )
            return {"measurements": [each.as_json() for each in found]}

        return [Measurement(**each) for each in self.steps.get(f"fidelity-{name}", key, compute)["measurements"]]

    def embedding(self, name: str) -> tuple[np.ndarray, int]:
        """t-SNE of features (van der Maaten & Hinton 2008): at most 1,000 real training images, then as many synthetic ones.

        Returns:
            `tuple[np.ndarray, int]`: Points, shape `[n, 2]`, and how many of them are real.
        """
        draws = np.random.default_rng(self.plan.seed)
        sets = [each.subset(draws.permutation(len(each))[:MOST_POINTS]) for each in (self.real_train, self.synthetic)]

        def compute() -> dict[str, Any]:
            features = np.concatenate([self.cache.features(self.extractor(name), each.images) for each in sets])
            return {"points": np.round(tsne(features, self.plan.seed), 3).tolist()}

        key = {**self._images, **self._extractor_key(name)}
        return np.array(self.steps.get(f"embedding-{name}", key, compute)["points"]), len(sets[0])

    def neighbours(self, which: np.ndarray, count: int) -> np.ndarray:
        """Indices of the real training images nearest in pixels to the synthetic images `which`, shape `[len(which), count]`."""
        pixels = PixelExtractor()
        return fidelity.nearest_neighbours(
            pixels(self.real_train.images), pixels(self.synthetic.images[which]), count
        )[0]

    def extractor(self, name: str) -> FeatureExtractor:
        """Made once, when it is needed: fitting and loading take long."""
        if name not in self._extractors:
            makers: dict[str, Callable[[], FeatureExtractor]] = {
                "pixels": PixelExtractor,
                "classifier": lambda: ClassifierExtractor(
                    self.real_train, seed=self.plan.seed, device=self.plan.device
                ),
                "inception": lambda: InceptionExtractor(self.plan.inception_weights, device=self.plan.device),
                "dinov2": lambda: Dinov2Extractor(self.plan.dinov2_model, device=self.plan.device),
            }
            self._extractors[name] = makers[name]()
        return self._extractors[name]

    def _extractor_key(self, name: str) -> dict[str, Any]:
        """What decides the features; those of `classifier` follow from the images and the seed, so that none is fitted in vain."""
        facts = None if name == "classifier" else self.extractor(name).facts
        return {"extractor": name, "facts": facts, "seed": self.plan.seed, "device": self.plan.device}


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """Features `[n, D]` to points `[n, 2]`, float32: first to 50 principal components, perplexity 30 or a third of the points."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    size = min(50, *features.shape)
    reduced = PCA(size, random_state=seed).fit_transform(features) if features.shape[1] > size else features
    perplexity = min(30.0, (len(features) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca" if size >= 2 else "random", random_state=seed).fit_transform(reduced)
