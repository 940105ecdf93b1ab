# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""All measurements of one report, in sequence; finished steps are stored, so that an interrupted evaluation can be
resumed."""

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


MOST_POINTS = 1000  # maximum number of points in t-SNE, for real and synthetic images each


@dataclass(frozen=True)
class EvaluationPlan:
    """The requested measurements, from the flags of `diffusers-dp evaluate`.

    Args:
        metrics, extractors, classifiers (sequence of `str`): Names in the order of the report.
        seed (`int`): Seed of all draws.
        repetitions (`int`): Number of seeds per classifier.
        ensemble (`int`): Number of classifiers per seed, whose probabilities are averaged.
        classifier_epochs (`int`, *optional*): Number of epochs instead of the published one.
        cifar_networks (`bool`): Whether to use the classifiers published for CIFAR-10 and CIFAR-100.
        utility_sizes (sequence of `int`, *optional*): Numbers of synthetic images to train on, besides all; defaults
            to a tenth and a third.
        reference (`bool`): Whether to train classifiers on real images, too.
        model_selection (`bool`): Whether to compare rankings of models.
        device (`str`): Device of networks.
        selection (`PrivateSelection`, *optional*): Real validation images that choose the classifiers' epochs;
            defaults to synthetic ones.
        dp_budget (`tuple[float, float]`, *optional*): Epsilon and delta of a classifier trained on real images with
            DP-SGD.
        left_out (sequence of `tuple[str, str]`): Pairs of metric and extractor that these images do not support.
        real_is_public (`bool`): Whether the terminal may show the number of real images.
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
    """Stored results, keyed by their inputs: images, flags, code and library versions.

    Args:
        folder (`Path`): Folder, as private as the images because its file names contain hashes of them.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.made_by = {
            "source": hash_source(),
            "libraries": library_versions(),
        }  # computed once because it reads every file of the library

    def get(self, name: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the stored result (JSON values), or computes and stores it."""
        path = self.path(name, key)
        if not path.is_file():  # files are complete or absent
            write_json(compute(), path)
        return self.read(name, key)

    def read(self, name: str, key: dict[str, Any]) -> dict[str, Any]:
        """Reads a stored result."""
        return json.loads(self.path(name, key).read_text(encoding="utf-8"))

    def path(self, name: str, key: dict[str, Any]) -> Path:
        """Returns the path of a result."""
        digest = hashlib.sha256(canonical_json({**key, **self.made_by}).encode()).hexdigest()
        return self.folder / f"{name}-{digest[:32]}.json"


class Evaluator:
    """Evaluates one set of synthetic images. It reads real images, so results are private unless these are declared
    public.

    Args:
        plan (`EvaluationPlan`): Requested measurements.
        folder (`Path`): Folder for features and finished steps; as private as the images.
        sets (`dict[str, ImageSet]`): Image sets `synthetic`, `real training` and optionally `real test` and `public`,
            of one shape and one label set.
        networks (`dict[str, FeatureExtractor]`): Extractors by name that are not built here.
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
        """Real test images, for measurements that need them."""
        assert self._real_test is not None
        return self._real_test

    def fill(
        self, evaluation: Evaluation, points: Iterable[CurvePoint] = (), features: Mapping[str, ImageSet] = {}
    ) -> None:
        """Adds all numbers and the warnings about them to a report.

        Args:
            points (iterable of `CurvePoint`): Earlier states of the released model.
            features (`dict[str, ImageSet]`): Results of `warm_up_features`, for complexity.
        """
        fits = self.utility()  # first because a private choice may be refused
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
                evaluation.confusion[fit["classifier"]] = fit["confusion"]  # the last one is for all images
        if self.plan.model_selection:
            evaluation.measurements += self.model_selection()
        if self.plan.dp_budget is not None:
            evaluation.measurements += self.dp_reference(*self.plan.dp_budget)
        cautions = dict.fromkeys(each.protocol.get("warning") for each in evaluation.measurements)
        evaluation.warnings += [caution for caution in cautions if caution and caution not in evaluation.warnings]

    def fidelity(self, name: str) -> list[Measurement]:
        """Measures `METRICS` in one feature space, and the domain discriminator if there are public images."""
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
        """Measures the Fréchet distance of each state's images in the first feature space."""
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
        """Trains each classifier on fewer synthetic images, on all of them, and on real ones for reference; tests on
        real images.

        Returns:
            `list[dict]`: Results with `classifier`, `trained_on`, `size` (images), `accuracy` in per cent, `confusion`
                (counts `[true class][predicted class]`) and `measurements`.
        """
        count = len(self.synthetic)
        asked = self.plan.utility_sizes or [size for size in (count // 10, count // 3) if size >= 2]
        sizes = [*sorted({size for size in asked if size != count}), None]
        names = list(self.plan.classifiers)
        if self.plan.selection is not None and names:  # one query to the validation images for all fits
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
        """Runs independent trainings, shared by several processes."""
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
        """See `reference_dp`; its ledger is not kept because nothing is released."""
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
        """Computes t-SNE of features (van der Maaten & Hinton 2008): at most 1,000 real training images, then as many
        synthetic ones.

        Returns:
            `tuple[np.ndarray, int]`: Points, shape `[n, 2]`, and the number of real ones.
        """
        draws = np.random.default_rng(self.plan.seed)
        sets = [each.subset(draws.permutation(len(each))[:MOST_POINTS]) for each in (self.real_train, self.synthetic)]

        def compute() -> dict[str, Any]:
            features = np.concatenate([self.cache.features(self.extractor(name), each.images) for each in sets])
            return {"points": np.round(tsne(features, self.plan.seed), 3).tolist()}

        key = {**self._images, **self._extractor_key(name)}
        return np.array(self.steps.get(f"embedding-{name}", key, compute)["points"]), len(sets[0])

    def neighbours(self, which: np.ndarray, count: int) -> np.ndarray:
        """Finds the real training images nearest in pixels to the synthetic images `which`: indices, shape
        `[len(which), count]`."""
        pixels = PixelExtractor()
        return fidelity.nearest_neighbours(
            pixels(self.real_train.images), pixels(self.synthetic.images[which]), count
        )[0]

    def extractor(self, name: str) -> FeatureExtractor:
        """Builds an extractor on first use, because fitting takes long."""
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
        """Returns the settings that determine features. Those of `classifier` depend on images and seed, so that none
        is fitted needlessly."""
        facts = None if name == "classifier" else self.extractor(name).facts
        return {"extractor": name, "facts": facts, "seed": self.plan.seed, "device": self.plan.device}


def _as_json(measurements: Sequence[Measurement]) -> dict[str, Any]:
    return {"measurements": [each.as_json() for each in measurements]}


@dataclass(frozen=True)
class _Training:
    """Classifiers trained on given numbers of synthetic images each (`None`: all), or on real images."""

    names: list[str]
    sizes: Sequence[int | None]
    real: bool = False

    def options(self, plan: EvaluationPlan) -> dict[str, Any]:
        """Returns the arguments of `measure_utility`."""
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
    """Maps features `[n, D]` to points `[n, 2]`, float32, by way of 50 principal components, with perplexity 30 or a
    third of the points."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    size = min(50, *features.shape)
    reduced = PCA(size, random_state=seed).fit_transform(features) if features.shape[1] > size else features
    perplexity = min(30.0, (len(features) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca" if size >= 2 else "random", random_state=seed).fit_transform(reduced)
