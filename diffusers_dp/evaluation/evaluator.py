# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""All measurements of one report, one after the other; what is finished is kept, so that an interrupted evaluation
goes on."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed.worker_pool import WorkerPool
from ..files.canonical import canonical_json
from ..files.output_files import write_json
from ..release.receipt import hash_source
from . import fidelity
from .classifier_features import ClassifierExtractor
from .complexity import DRAWN_IMAGES, feature_complexity
from .dp_classifier import reference_dp
from .extractors import FeatureExtractor, PixelExtractor
from .feature_cache import FeatureCache
from .fidelity_report import METRICS, measure, measure_domain
from .images import ImageSet, fingerprint
from .measurement import Measurement
from .model_selection import measure_model_selection
from .report import Evaluation, library_versions
from .training_curve import CurvePoint
from .utility import PrivateSelection, UtilityDetails, measure_utility, reference_real


MOST_POINTS = 1000  # of t-SNE, real and synthetic ones each


@dataclass(frozen=True)
class EvaluationPlan:
    """What is to be measured: the flags of `diffusers-dp evaluate`.

    Args:
        metrics, extractors, classifiers (sequence of `str`): In the order of the report.
        seed (`int`): Of everything that is drawn.
        repetitions (`int`): Seeds of each classifier.
        ensemble (`int`): Classifiers a seed, whose probabilities are averaged.
        classifier_epochs (`int`, *optional*): Instead of the published number.
        cifar_networks (`bool`): Whether classifiers are those published for CIFAR-10 and CIFAR-100.
        utility_sizes (sequence of `int`, *optional*): Numbers of synthetic images to train on, besides all; by default
            a tenth and a third.
        reference (`bool`): Whether classifiers are trained on real images as well.
        model_selection (`bool`): Whether the rankings of models are compared.
        device (`str`): Of networks.
        selection (`PrivateSelection`, *optional*): Real validation images that choose the classifiers' epochs;
            synthetic ones otherwise.
        dp_budget (`tuple[float, float]`, *optional*): Epsilon and delta of a classifier that is trained on real images
            with DP-SGD.
        left_out (sequence of `tuple[str, str]`): Metric and extractor that do not go together on these images.
        real_is_public (`bool`): Whether the terminal may show how many real images there are.
    """

    metrics: Sequence[str]
    extractors: Sequence[str]
    classifiers: Sequence[str]
    seed: int
    repetitions: int
    ensemble: int
    classifier_epochs: int | None
    cifar_networks: bool
    utility_sizes: Sequence[int] | None
    reference: bool
    model_selection: bool
    device: str
    selection: PrivateSelection | None = None
    dp_budget: tuple[float, float] | None = None
    left_out: Sequence[tuple[str, str]] = ()
    real_is_public: bool = False


class FinishedSteps:
    """Results by what they were made of: images, flags, code and the libraries that compute.

    Args:
        folder (`Path`): As private as the images, for the names hold hashes of them.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.made_by = {
            "source": hash_source(),
            "libraries": library_versions(),
        }  # once: it reads every file of the library

    def get(self, name: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept result (JSON values), or that of `compute`, which is kept."""
        path = self.path(name, key)
        if not path.is_file():  # there whole or not at all
            write_json(compute(), path)
        return self.read(name, key)

    def read(self, name: str, key: dict[str, Any]) -> dict[str, Any]:
        """The result that is there."""
        return json.loads(self.path(name, key).read_text(encoding="utf-8"))

    def path(self, name: str, key: dict[str, Any]) -> Path:
        """Where a result lies, if it is there."""
        digest = hashlib.sha256(canonical_json({**key, **self.made_by}).encode()).hexdigest()
        return self.folder / f"{name}-{digest[:32]}.json"


class Evaluator:
    """Judges one set of synthetic images. It reads real images: private, unless these are declared public.

    Args:
        plan (`EvaluationPlan`): What is to be measured.
        folder (`Path`): For features and finished steps; as private as the images.
        sets (`dict[str, ImageSet]`): `synthetic`, `real training` and, where there are some, `real test` and `public`;
            of one shape and one label set.
        networks (`dict[str, FeatureExtractor]`): By name the extractors that are not made here.
        pool (`WorkerPool`, *optional*): Processes that share features and classifiers.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        folder: Path,
        sets: dict[str, ImageSet],
        networks: Mapping[str, FeatureExtractor] = {},
        pool: WorkerPool | None = None,
    ):
        self.plan, self.pool = plan, pool or WorkerPool()
        self.synthetic, self.real_train, self._real_test = (
            sets["synthetic"],
            sets["real training"],
            sets.get("real test"),
        )
        self.public = sets.get("public")
        self.cache = FeatureCache(folder / "features", counted=plan.real_is_public, pool=self.pool)
        self.steps = FinishedSteps(folder / "steps")
        self._images = {name: fingerprint(images) for name, images in sets.items() if name != "real validation"}
        self._extractors = dict(networks)

    @property
    def real_test(self) -> ImageSet:
        """For what is measured only where there are some."""
        assert self._real_test is not None
        return self._real_test

    def fill(
        self, evaluation: Evaluation, points: Iterable[CurvePoint] = (), features: Mapping[str, ImageSet] = {}
    ) -> None:
        """Adds all numbers, and what has to be known to read them, to a report.

        Args:
            points (iterable of `CurvePoint`): States on the way to the release.
            features (`dict[str, ImageSet]`): What `warm_up_features` returned, for complexity.
        """
        fits = self.utility()  # first: a private choice may be refused
        for name in self.plan.extractors:
            evaluation.measurements += self.fidelity(name)
        evaluation.measurements += self.training_curve(points)
        if "complexity" in self.plan.metrics:
            evaluation.measurements += feature_complexity({**features, DRAWN_IMAGES: self.synthetic})
        for fit in fits:
            evaluation.measurements += [Measurement(**each) for each in fit["measurements"]]
            if fit["trained_on"] == "synthetic":
                curve = evaluation.size_curves.setdefault(fit["classifier"], [])
                curve.append((fit["size"], fit["accuracy"] / 100))
                evaluation.confusion[fit["classifier"]] = fit["confusion"]  # the last: of all images
        if self.plan.model_selection:
            evaluation.measurements += self.model_selection()
        if self.plan.dp_budget is not None:
            evaluation.measurements += self.dp_reference(*self.plan.dp_budget)
        cautions = dict.fromkeys(each.protocol.get("warning") for each in evaluation.measurements)
        evaluation.warnings += [caution for caution in cautions if caution and caution not in evaluation.warnings]

    def fidelity(self, name: str) -> list[Measurement]:
        """`METRICS` in one feature space, and the domain discriminator where there are public images."""
        metrics = [
            metric for metric in self.plan.metrics if metric in METRICS and (metric, name) not in self.plan.left_out
        ]
        key = {**self._images, **self._extractor_key(name), "metrics": metrics}

        def compute() -> dict[str, Any]:
            extractor, found = self.extractor(name), []
            if metrics:
                found = measure(
                    extractor, self.real_train, self.synthetic, self._real_test, metrics=metrics, seed=self.plan.seed,
                    cache=self.cache, device=self.plan.device,
                )  # fmt: skip
            if self.public is not None:
                found += measure_domain(
                    extractor, self.real_train, self.public, self.synthetic, seed=self.plan.seed, cache=self.cache
                )
            return _as_json(found)

        return self._measurements(f"fidelity-{name}", key, compute)

    def training_curve(self, points: Iterable[CurvePoint]) -> list[Measurement]:
        """The Fréchet distance of each state's images in the first feature space."""
        return [measurement for point in points for measurement in self._curve_point(point)]

    def _curve_point(self, point: CurvePoint) -> list[Measurement]:
        name = self.plan.extractors[0]
        key = {"real": self._images["real training"], **self._extractor_key(name), "drawing": point.drawing}
        key |= {"weights": point.weights_sha256}

        def compute() -> dict[str, Any]:
            images = ImageSet(point.draw())
            return _as_json(
                measure(
                    self.extractor(name), self.real_train, images, None, metrics=["fid"], seed=self.plan.seed,
                    cache=self.cache, device=self.plan.device,
                )
            )  # fmt: skip

        state = {"state": point.state.name, "dp_sgd_step": point.state.step, "drawing": point.drawing}
        state |= {"weights_sha256": point.weights_sha256}
        found = self._measurements("curve", key, compute)
        return [replace(each, protocol={**each.protocol, **state}) for each in found]

    def utility(self) -> list[dict[str, Any]]:
        """Each classifier, trained on fewer synthetic images, on all of them, and on real ones for reference; tested
        on real ones.

        Returns:
            `list[dict]`: `classifier`, `trained_on`, `size` (images), `accuracy` in per cent, `confusion` (counts
                `[true class][predicted class]`) and `measurements`.
        """
        count = len(self.synthetic)
        asked = self.plan.utility_sizes or [size for size in (count // 10, count // 3) if size >= 2]
        sizes = [*sorted({size for size in asked if size != count}), None]
        names = list(self.plan.classifiers)
        if self.plan.selection is not None and names:  # one question to the validation images, for all fits
            fits = self._choose_privately(_Training(names, sizes), self.plan.selection)
        else:
            fits = self._train([_Training([name], [size]) for name in names for size in sizes], self.synthetic)
        if self.plan.reference:
            fits += self._train([_Training([name], [None], real=True) for name in names], self.real_train)
        return sorted(fits, key=lambda fit: names.index(fit["classifier"]))

    def _choose_privately(self, training: "_Training", selection: PrivateSelection) -> list[dict[str, Any]]:
        name, key = self._step_of(training)
        key |= {"validation": fingerprint(selection.validation), "budget": [selection.epsilon, selection.delta]}

        def compute() -> dict[str, Any]:
            return _fit(self.plan, self.synthetic, self.real_test, training, selection)

        return self.steps.get(name, key, compute)["fits"]

    def _train(self, trainings: "Sequence[_Training]", images: ImageSet) -> list[dict[str, Any]]:
        """They know nothing of each other: several processes share them."""
        missing = [training for training in trainings if not self.steps.path(*self._step_of(training)).is_file()]
        if missing:
            work = partial(_fit, replace(self.plan, selection=None), images, self.real_test)
            for training, found in zip(missing, self.pool.map(work, missing), strict=True):
                write_json(found, self.steps.path(*self._step_of(training)))
        return [fit for training in trainings for fit in self.steps.read(*self._step_of(training))["fits"]]

    def _step_of(self, training: "_Training") -> tuple[str, dict[str, Any]]:
        kind = "reference" if training.real else "utility"
        key = {**self._images, **training.options(self.plan), "real": training.real}
        return f"{kind}-{'-'.join(training.names)}", key

    def model_selection(self) -> list[Measurement]:
        """See `measure_model_selection`."""
        options: dict[str, Any] = {
            "seed": self.plan.seed, "epochs": self.plan.classifier_epochs, "device": self.plan.device,
        }  # fmt: skip

        def compute() -> dict[str, Any]:
            return _as_json(measure_model_selection(self.synthetic, self.real_test, **options, pool=self.pool)[0])

        return self._measurements("model_selection", {**self._images, **options}, compute)

    def dp_reference(self, epsilon: float, delta: float) -> list[Measurement]:
        """See `reference_dp`; its ledger is not kept, for nothing of it is released."""
        options: dict[str, Any] = {
            "epsilon": epsilon, "delta": delta, "seed": self.plan.seed, "device": self.plan.device,
        }  # fmt: skip

        def compute() -> dict[str, Any]:
            return _as_json(reference_dp(self.real_train, self.real_test, **options)[0])

        return self._measurements("dp_reference", {**self._images, **options}, compute)

    def _measurements(
        self, name: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]
    ) -> list[Measurement]:
        return [Measurement(**each) for each in self.steps.get(name, key, compute)["measurements"]]

    def embedding(self, name: str) -> tuple[np.ndarray, int]:
        """t-SNE of features (van der Maaten & Hinton 2008): at most 1,000 real training images, then as many synthetic
        ones.

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
        """Indices of the real training images nearest in pixels to the synthetic images `which`, shape `[len(which),
        count]`."""
        pixels = PixelExtractor()
        return fidelity.nearest_neighbours(
            pixels(self.real_train.images), pixels(self.synthetic.images[which]), count
        )[0]

    def extractor(self, name: str) -> FeatureExtractor:
        """Made once, when it is needed: fitting takes long."""
        if name not in self._extractors:
            makers: dict[str, Callable[[], FeatureExtractor]] = {
                "pixels": PixelExtractor,
                "classifier": lambda: ClassifierExtractor(
                    self.real_train, seed=self.plan.seed, device=self.plan.device
                ),
            }
            self._extractors[name] = makers[name]()
        return self._extractors[name]

    def _extractor_key(self, name: str) -> dict[str, Any]:
        """What decides the features; those of `classifier` follow from the images and the seed, so that none is fitted
        in vain."""
        facts = None if name == "classifier" else self.extractor(name).facts
        return {"extractor": name, "facts": facts, "seed": self.plan.seed, "device": self.plan.device}


def _as_json(measurements: Sequence[Measurement]) -> dict[str, Any]:
    return {"measurements": [each.as_json() for each in measurements]}


@dataclass(frozen=True)
class _Training:
    """Classifiers that are trained on so many synthetic images each (`None`: all), or on real ones."""

    names: list[str]
    sizes: Sequence[int | None]
    real: bool = False

    def options(self, plan: EvaluationPlan) -> dict[str, Any]:
        """As `measure_utility` takes them."""
        return {
            "classifiers": self.names, "seeds": [plan.seed + i for i in range(plan.repetitions)],
            "ensemble": plan.ensemble, "epochs": plan.classifier_epochs, "cifar": plan.cifar_networks,
            "device": plan.device, "sizes": list(self.sizes),
        }  # fmt: skip


def _fit(
    plan: EvaluationPlan,
    train: ImageSet,
    real_test: ImageSet,
    training: _Training,
    selection: PrivateSelection | None = None,
) -> dict[str, Any]:
    options = training.options(plan)
    if training.real:
        details = reference_real(train, real_test, **options)[1]
    else:
        details = measure_utility(train, real_test, **options, selection=selection or "synthetic")[1]
    return {"fits": [_fit_as_json(each) for each in details]}


def _fit_as_json(details: UtilityDetails) -> dict[str, Any]:
    protocol, measurements = details.protocol, details.measurements()
    return {
        "classifier": protocol["classifier"],
        "trained_on": protocol["trained_on"],
        "size": protocol["num_train"] + protocol["num_validation"],
        "accuracy": measurements[0].value,
        "confusion": details.confusion.tolist(),
        **_as_json(measurements),
    }


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """Features `[n, D]` to points `[n, 2]`, float32: first to 50 principal components, perplexity 30 or a third of the
    points."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    size = min(50, *features.shape)
    reduced = PCA(size, random_state=seed).fit_transform(features) if features.shape[1] > size else features
    perplexity = min(30.0, (len(features) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca" if size >= 2 else "random", random_state=seed).fit_transform(reduced)
