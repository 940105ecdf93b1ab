# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""All measurements of one report, in sequence; finished steps are stored, so that an interrupted evaluation can be
resumed."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..distributed.worker_pool import WorkerPool
from ..files.canonical import canonical_json
from ..files.output_files import write_json
from ..release.receipt import hash_source
from .analyses import ANALYSES, function_of
from .choice import MeasurementPlan
from .classifier_features import ClassifierExtractor
from .extractors import FeatureExtractor, PixelExtractor
from .feature_cache import FeatureCache
from .fidelity_report import FeatureSpace
from .flags import ON_HARD_LABELS, EvaluationFlags
from .images import ImageSet, hash_images
from .measurement import Measurement
from .report import library_versions
from .utility import measure_utility


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

    def get(self, name: str, key: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the stored result (JSON values), or computes and stores it."""
        return self.get_all([(name, key)], lambda missing: [compute()])[0]

    def get_all(
        self, keys: Sequence[tuple[str, Mapping[str, Any]]], compute: Callable[[list[int]], Iterable[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Returns the stored results of these names and keys; computes and stores those that are missing, by their
        places."""
        digests = [hashlib.sha256(canonical_json({**key, **self.made_by}).encode()).hexdigest() for _, key in keys]
        paths = [self.folder / f"{name}-{digest[:32]}.json" for (name, _), digest in zip(keys, digests, strict=True)]
        missing = [i for i, path in enumerate(paths) if not path.is_file()]  # files are complete or absent
        for i, found in zip(missing, compute(missing) if missing else (), strict=True):
            write_json(found, paths[i])
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@dataclass
class Evaluator:
    """Evaluates one set of synthetic images. It reads real images, so results are private unless these are declared
    public.

    Args:
        flags (`EvaluationFlags`): Settings of the measurements.
        choice (`MeasurementPlan`): What is measured.
        folder (`Path`): Folder for features and finished steps; as private as the images.
        sets (`dict[str, ImageSet]`): Image sets `synthetic`, `real training` and optionally `real test` and `real
            validation`, of one shape and one label set.
        seed (`int`): Seed of all draws.
        device (`str`): Device of networks.
        networks (`dict[str, FeatureExtractor]`): Extractors by name that are not built here.
        pool (`WorkerPool`): Processes that share features and classifiers.

    Attributes:
        confusion (`dict`): Counts `[true class][predicted class]` on the real test images, by classifier.
    """

    flags: EvaluationFlags
    choice: MeasurementPlan
    folder: Path
    sets: Mapping[str, ImageSet]
    seed: int
    device: str
    networks: Mapping[str, FeatureExtractor]
    pool: WorkerPool

    def __post_init__(self) -> None:
        self.cache = FeatureCache(self.folder / "features", counted=self.flags.real_is_public, pool=self.pool)
        self.steps = FinishedSteps(self.folder / "steps")
        self.confusion: dict[str, list[list[int]]] = {}
        self._extractors = dict(self.networks)

    @cached_property
    def images(self) -> dict[str, Any]:
        """Hashes of all images that are measured."""
        return {name: hash_images(images) for name, images in self.sets.items()}

    def measurements(self) -> list[Measurement]:
        """Measures everything in the order of the report, and sets `confusion`."""
        found: list[Measurement] = []
        for job in self.choice.jobs:
            found += [replace(each, analysis=job[0]) for each in self.measure(*job)]
        return found

    def measure(self, name: str, extractor: str) -> list[Measurement]:
        """Measures one analysis, in a feature space if it needs one."""
        measure = function_of(ANALYSES[name].measure)
        if not extractor:
            return measure(self)
        found = self.steps.get(
            f"{name}-{extractor}", {**self.images, **self.extractor_key(extractor)},
            lambda: {"measurements": [each.as_json() for each in measure(self.space(extractor))]},
        )  # fmt: skip
        return [Measurement(**each) for each in found["measurements"]]

    def space(self, extractor: str) -> FeatureSpace:
        device = "cpu" if self.device.startswith("mps") else self.device  # mps has no float64
        return FeatureSpace(self.extractor(extractor), self.sets, self.seed, self.cache, device)

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


def utility(evaluator: Evaluator) -> list[Measurement]:
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
    trainings = [{"classifiers": [name], "sizes": [size], **common} for name in names for size in sizes]
    if evaluator.sets["synthetic"].probabilities is not None:
        trainings += [{"classifiers": [name], "soft": True, **common} for name in names if name not in ON_HARD_LABELS]
    fits = _train(evaluator, "synthetic", trainings)
    if flags.reference:
        # As many as there are synthetic images, where all would take long.
        real = [min(count, len(evaluator.sets["real training"]))] if flags.quick else [None]
        trainings = [{"classifiers": [name], "sizes": real, "trained_on": "real", **common} for name in names]
        fits += _train(evaluator, "real training", trainings)
    fits.sort(key=lambda fit: names.index(fit["accuracy"]["protocol"]["classifier"].partition(" ")[0]))
    for fit in fits:
        if fit["accuracy"]["protocol"]["trained_on"] == "synthetic":  # the last one is for all images
            evaluator.confusion[fit["accuracy"]["protocol"]["classifier"]] = fit["confusion"]
    return [Measurement(**fit["accuracy"]) for fit in fits]


def _train(evaluator: Evaluator, train: str, trainings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs independent trainings on a set, shared by several processes."""
    sets = evaluator.sets
    work = partial(_fit, sets[train], sets["real test"], sets.get("real validation"))
    found = evaluator.steps.get_all(
        [("utility", {**evaluator.images, **options}) for options in trainings],
        lambda missing: evaluator.pool.map(work, [trainings[i] for i in missing]),
    )
    return [fit for each in found for fit in each["fits"]]


def _fit(train: ImageSet, real_test: ImageSet, validation: ImageSet | None, options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if name != "soft"}
    train = train if "soft" in options else replace(train, probabilities=None)
    found = measure_utility(train, real_test, validation=validation, **given)
    return {"fits": [{"confusion": each.confusion.tolist(), "accuracy": each.accuracy.as_json()} for each in found]}
