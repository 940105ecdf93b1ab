# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""All measurements of one report, in sequence; finished steps are stored, so that an interrupted evaluation can be
resumed."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed.worker_pool import WorkerPool
from ..files.canonical import canonical_json
from ..files.output_files import write_json
from ..release.receipt import hash_source
from .analyses import ANALYSES, function_of
from .choice import Choice
from .classifier_features import ClassifierExtractor
from .complexity import DRAWN_IMAGES, feature_complexity
from .dp_classifier import reference_dp
from .extractors import FeatureExtractor, PixelExtractor
from .feature_cache import FeatureCache
from .fidelity_report import FeatureSpace, measure_fid
from .flags import MeasureFlags
from .images import ImageSet, hash_images
from .measurement import Measurement
from .model_selection import measure_model_selection
from .report import Evaluation, library_versions
from .utility import PrivateSelection, measure_utility


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


@dataclass
class Evaluator:
    """Evaluates one set of synthetic images. It reads real images, so results are private unless these are declared
    public.

    Args:
        flags (`MeasureFlags`): Settings of the measurements.
        choice (`Choice`): What is measured.
        folder (`Path`): Folder for features and finished steps; as private as the images.
        sets (`dict[str, ImageSet]`): Image sets `synthetic`, `real training` and optionally `real test` and `public`,
            of one shape and one label set.
        seed (`int`, defaults to 0): Seed of all draws.
        device (`str`, defaults to `"cpu"`): Device of networks.
        networks (`dict[str, FeatureExtractor]`): Extractors by name that are not built here.
        pool (`WorkerPool`): Processes that share features and classifiers.
        counted (`bool`, defaults to `False`): Whether the terminal may show the number of real images.
        selection (`PrivateSelection`, *optional*): Real validation images that choose the classifiers' epochs;
            defaults to synthetic ones.
        dp_budget (`tuple[float, float]`, *optional*): Epsilon and delta of a classifier trained on real images with
            DP-SGD.
        points (iterable of `tuple`): Earlier states of the released model: what determines their images, and a
            function that draws these.
        features (`dict[str, ImageSet]`): Results of `warm_up_features`, for complexity.
    """

    flags: MeasureFlags
    choice: Choice
    folder: Path
    sets: Mapping[str, ImageSet]
    seed: int = 0
    device: str = "cpu"
    networks: Mapping[str, FeatureExtractor] = field(default_factory=dict)
    pool: WorkerPool = field(default_factory=WorkerPool)
    counted: bool = False
    selection: PrivateSelection | None = None
    dp_budget: tuple[float, float] | None = None
    points: Iterable[tuple[dict[str, Any], Callable[[], np.ndarray]]] = ()
    features: Mapping[str, ImageSet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = FeatureCache(self.folder / "features", counted=self.counted, pool=self.pool)
        self.steps = FinishedSteps(self.folder / "steps")
        self._extractors = dict(self.networks)
        self._space: FeatureSpace | None = None

    @cached_property
    def images(self) -> dict[str, Any]:
        """Hashes of all images that are measured."""
        return {name: hash_images(images) for name, images in self.sets.items() if name != "real validation"}

    def fill(self, evaluation: Evaluation) -> None:
        """Adds all numbers to a report."""
        found = {}
        # Classifiers are first because a private choice may be refused.
        for job in sorted(self.choice.jobs, key=lambda job: job[0] != "classifiers"):
            found[job] = [replace(each, analysis=job[0]) for each in self.measure(*job, evaluation)]
        evaluation.measurements += [each for job in self.choice.jobs for each in found[job]]

    def measure(self, name: str, extractor: str, evaluation: Evaluation) -> list[Measurement]:
        """Measures one analysis, in a feature space if it needs one."""
        analysis = ANALYSES[name]
        measure = function_of(analysis.measure)
        if not analysis.by_features:
            return measure(self, evaluation)
        return self.stored(
            f"{name}-{extractor}", self.extractor_key(extractor), lambda: measure(self.space(extractor))
        )

    def stored(self, name: str, key: Mapping[str, Any], compute: Callable[[], list[Measurement]]) -> list[Measurement]:
        """Returns the stored measurements of these images, or computes and stores them."""
        found = self.steps.get(name, {**self.images, **key}, lambda: _as_json(compute()))
        return [Measurement(**each) for each in found["measurements"]]

    def space(self, extractor: str, **sets: ImageSet) -> FeatureSpace:
        """Returns the feature space, with other sets in the place of its own; keeps the features of the last one."""
        if sets or self._space is None or self._space.extractor.name != extractor:
            device = "cpu" if self.device.startswith("mps") else self.device  # mps has no float64
            space = FeatureSpace(self.extractor(extractor), {**self.sets, **sets}, self.seed, self.cache, device)
            if sets:
                return space
            self._space = space
        return self._space

    def extractor(self, name: str) -> FeatureExtractor:
        """Builds an extractor on first use, because fitting takes long."""
        if name not in self._extractors:
            self._extractors[name] = (
                PixelExtractor() if name == "pixels"
                else ClassifierExtractor(self.sets["real training"], seed=self.seed, device=self.device)
            )  # fmt: skip
        return self._extractors[name]

    def extractor_key(self, name: str) -> dict[str, Any]:
        """Returns the settings that determine features. Those of `classifier` depend on images and seed, so that none
        is fitted needlessly."""
        facts = None if name == "classifier" else self.extractor(name).facts
        return {"extractor": name, "facts": facts, "seed": self.seed, "device": self.device}


def complexity(evaluator: Evaluator, evaluation: Evaluation) -> list[Measurement]:
    return feature_complexity({**evaluator.features, DRAWN_IMAGES: evaluator.sets["synthetic"]})


def training_curve(evaluator: Evaluator, evaluation: Evaluation) -> list[Measurement]:
    """Measures the Fréchet distance of each state's images in the first feature space."""
    name, found = evaluator.choice.extractors[0], []
    for facts, draw in evaluator.points:
        measured = evaluator.stored(
            "curve", {**evaluator.extractor_key(name), **facts},
            lambda: measure_fid(evaluator.space(name, synthetic=ImageSet(draw()))),  # noqa: B023 (called here)
        )  # fmt: skip
        found += [replace(each, protocol={**each.protocol, **facts}) for each in measured]
    return found


def ranking(evaluator: Evaluator, evaluation: Evaluation) -> list[Measurement]:
    """See `measure_model_selection`."""
    options: dict[str, Any] = {
        "seed": evaluator.seed, "epochs": evaluator.flags.classifier_epochs, "device": evaluator.device,
    }  # fmt: skip
    sets = evaluator.sets["synthetic"], evaluator.sets["real test"]
    return evaluator.stored(
        "model_selection", options, lambda: measure_model_selection(*sets, **options, pool=evaluator.pool)
    )


def dp_reference(evaluator: Evaluator, evaluation: Evaluation) -> list[Measurement]:
    """See `reference_dp`; its ledger is not kept because nothing is released."""
    assert evaluator.dp_budget is not None  # the command looked
    options: dict[str, Any] = dict(zip(("epsilon", "delta"), evaluator.dp_budget, strict=True))
    options |= {"seed": evaluator.seed, "device": evaluator.device}
    sets = evaluator.sets["real training"], evaluator.sets["real test"]
    return evaluator.stored("dp_reference", options, lambda: [reference_dp(*sets, **options).accuracy])


def utility(evaluator: Evaluator, evaluation: Evaluation) -> list[Measurement]:
    """Trains each classifier on fewer synthetic images, on all of them, and on real ones for reference; tests on real
    images."""
    flags, names, count = evaluator.flags, evaluator.choice.classifiers, len(evaluator.sets["synthetic"])
    fewer = () if flags.quick else (count // 10, count // 3)
    asked = flags.utility_sizes or [size for size in fewer if size >= 2]
    sizes = [*sorted({size for size in asked if size != count}), None]
    common = {
        "seeds": [evaluator.seed + i for i in range(flags.repetitions)], "ensemble": flags.ensemble,
        "epochs": flags.classifier_epochs, "cifar": flags.cifar_networks, "device": evaluator.device,
    }  # fmt: skip
    if evaluator.selection is not None:  # one query to the validation images for all fits
        fits = _choose_privately(evaluator, {"classifiers": names, "sizes": sizes, **common}, evaluator.selection)
    else:
        trainings = [{"classifiers": [name], "sizes": [size], **common} for name in names for size in sizes]
        fits = _train(evaluator, "synthetic", trainings)
    if flags.reference:
        # As many as there are synthetic images, where all would take long.
        real = [min(count, len(evaluator.sets["real training"]))] if flags.quick else [None]
        trainings = [{"classifiers": [name], "sizes": real, "trained_on": "real", **common} for name in names]
        fits += _train(evaluator, "real training", trainings)
    found = [(Measurement(**fit["accuracy"]), fit["confusion"]) for fit in fits]
    found.sort(key=lambda fit: names.index(fit[0].protocol["classifier"]))
    for accuracy, confusion in found:
        if accuracy.protocol["trained_on"] == "synthetic":
            evaluation.confusion[accuracy.protocol["classifier"]] = confusion  # the last one is for all images
    return [accuracy for accuracy, _ in found]


def _step_of(evaluator: Evaluator, options: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    """Returns name and key of the stored result of a training, which `options` of `measure_utility` determine."""
    return f"utility-{'-'.join(options['classifiers'])}", {**evaluator.images, **options, **more}


def _choose_privately(
    evaluator: Evaluator, options: dict[str, Any], selection: PrivateSelection
) -> list[dict[str, Any]]:
    budget = [selection.epsilon, selection.delta]
    step = _step_of(evaluator, options, validation=hash_images(selection.validation), budget=budget)
    sets = evaluator.sets["synthetic"], evaluator.sets["real test"]
    return evaluator.steps.get(*step, partial(_fit, *sets, {**options, "selection": selection}))["fits"]


def _train(evaluator: Evaluator, train: str, trainings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs independent trainings on a set, shared by several processes."""
    steps = [_step_of(evaluator, options) for options in trainings]
    missing = [i for i, step in enumerate(steps) if not evaluator.steps.path(*step).is_file()]
    if missing:
        work = partial(_fit, evaluator.sets[train], evaluator.sets["real test"])
        for i, found in zip(missing, evaluator.pool.map(work, [trainings[i] for i in missing]), strict=True):
            write_json(found, evaluator.steps.path(*steps[i]))
    return [fit for step in steps for fit in evaluator.steps.read(*step)["fits"]]


def _fit(train: ImageSet, real_test: ImageSet, options: dict[str, Any]) -> dict[str, Any]:
    details = measure_utility(train, real_test, **options)
    return {"fits": [{"confusion": each.confusion.tolist(), "accuracy": each.accuracy.as_json()} for each in details]}


def _as_json(measurements: Sequence[Measurement]) -> dict[str, Any]:
    return {"measurements": [each.as_json() for each in measurements]}
