# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One evaluation from its flags to its report: what is refused, what is counted, and where everything goes.

Its measurements run in sequence; finished steps are stored, so that an interrupted evaluation can be resumed.
What it adds to a release is a count, and no number.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed.worker_pool import WorkerPool
from ..errors import DiffusersDPError, IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..files.journal import sync_folder, write_synced
from ..files.output_files import refuse_in_release, write_json, write_text
from ..queries.efficientnet import EFFICIENTNET
from ..release.hub import fetch_release, verify_here
from ..release.loading import release_in
from ..release.marked import refuse_marked
from ..release.receipt import hash_source
from ..sampling.drawing import Drawing
from ..sampling.shards import Drawer, device_of
from ..verify import RECEIPT_NAME
from .analyses import ANALYSES, AvailableImages, function_of
from .choice import MeasurementPlan, choose
from .classifier_features import DIMENSION, ClassifierExtractor
from .extractors import EfficientNetExtractor, FeatureCache, FeatureExtractor, InceptionExtractor, PixelExtractor
from .fidelity_report import FeatureSpace
from .flags import ON_HARD_LABELS, EvaluationFlags
from .images import ImageSet, hash_images, with_classes_of
from .inputs import Inputs, judged_facts
from .measurement import Measurement
from .report import PAGE_NAME, REPORT_NAME, Evaluation, library_versions
from .report_page import report_page, verdict
from .utility import measure_utility


CACHES = ("cache", "features", "steps")
#: Flags that decide numbers, as the report states them, besides those of drawing.
SETTINGS = (
    "quick", "repetitions", "ensemble", "classifier_epochs", "cifar_networks", "utility_sizes", "reference",
    "selection", "train_split",
    "validation_size", "resize", "real_is_public",
)  # fmt: skip


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
        (found,) = self.steps.get_all(
            [(f"{name}-{extractor}", {**self.images, **self.extractor_key(extractor)})],
            lambda _: [{"measurements": [each.as_json() for each in measure(self.space(extractor))]}],
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


def judge_images(flags: EvaluationFlags, drawing: Drawing, pool: WorkerPool, *, device: str, base: str | None) -> None:
    """Evaluates, writes the report, and prints the verdict.

    Args:
        flags (`EvaluationFlags`): Checked flags.
        drawing (`Drawing`): What is drawn from `--model`.
        pool (`WorkerPool`): Processes that share the work.
        device (`str`): Device of networks; `auto`: a GPU if there is one.
        base (`str`, *optional*): See `load_verified`.

    Raises:
        UsageError, IntegrityError: Something cannot be evaluated; then nothing is written or counted.
    """
    device = device_of(device)
    release = None if flags.model is None else _open_release(flags.model, drawing, device, base)
    facts = judged_facts(flags, release)
    with _folder(flags) as (folder, begun):
        inputs = Inputs(flags, drawing.seed, release, facts, folder / "cache")
        sets, choice, networks = _read(inputs, device, begun, pool)
        evaluator = Evaluator(flags, choice, folder, sets, drawing.seed, device, networks, pool)
        settings = {
            **({"seed": drawing.seed} if release is None else drawing.facts),
            **{name: getattr(flags, name) for name in SETTINGS}, "num_images": flags.num_judged,
            "test_split": inputs.test_split,
            **{name: getattr(choice, name) for name in ("metrics", "extractors", "classifiers")},
        }  # fmt: skip
        evaluation = Evaluation(
            not flags.real_is_public, settings, sets, facts, evaluator.measurements(), evaluator.confusion,
            inputs.warnings + choice.warnings,
        )  # fmt: skip
        write_json(evaluation.as_json(), folder / REPORT_NAME)
        write_text(report_page(evaluation), folder / PAGE_NAME)
    print(*verdict(evaluation), sep="\n")
    print(f"Written to {folder / PAGE_NAME}; private data read: {'no' if flags.real_is_public else 'yes'}.")


def _open_release(model: str, drawing: Drawing, device: str, base: str | None) -> Drawer:
    folder = fetch_release(model, flag="--model")
    refuse_marked(
        folder, f"--model {folder}", "where it is a pipeline, give images that were drawn from it as --images"
    )
    return Drawer.of(model, drawing, device, base)


@contextmanager
def _folder(flags: EvaluationFlags) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Where everything goes, mode 700 and for one command at a time; what was made for a command that is refused is
    removed, until `begun()` is called."""
    root = flags.output_dir
    if root is None:
        local = flags.model is not None and Path(flags.model).is_dir()
        root = Path(flags.model or "").resolve().parent if local else Path("runs", "evaluation")
    refuse_in_release(root)
    folder = root / ("evaluation" if flags.real_is_public else "private/unprotected/evaluation")
    begun: list[bool] = []
    try:
        made = next((path for path in (*reversed(folder.parents), folder) if not path.exists()), None)
        with public_files():
            root.mkdir(parents=True, exist_ok=True)
        for name in CACHES:
            (folder / name).mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"--output_dir {root} is in use by another evaluation; wait for it, or give another folder."
        ) from None
    except OSError as error:
        raise UsageError(f"--output_dir {root} cannot be used ({error.strerror}); give another folder.") from None
    try:
        if not flags.real_is_public:
            print(f"This reads private data: everything stays in {folder}.")
        yield folder, lambda: begun.append(True)
    except DiffusersDPError:
        if made is not None and not begun:
            shutil.rmtree(made, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _count(flags: EvaluationFlags, release: Drawer | None) -> list[str]:
    """Before more than a size of the private images is read: adds one to the receipt, or says that nobody counts."""
    if flags.real_is_public:
        return []
    released = flags.images if release is None and release_in(flags.images or "").holds_images else flags.model
    folder = None if released is None else Path(released).resolve()  # the new receipt waits in the one around it
    if folder is not None and folder.is_dir() and all(os.access(each, os.W_OK) for each in (folder, folder.parent)):
        count_evaluation(folder)
        return []
    where = "no release was given" if released is None else "the release cannot be written here"
    note = (
        f"This evaluation is not counted in any receipt's private_evaluations, for {where}: keep count of it yourself."
    )
    print(note)
    return [note]


def _read(
    inputs: Inputs, device: str, begun: Callable[[], None], pool: WorkerPool
) -> tuple[dict[str, ImageSet], MeasurementPlan, dict[str, FeatureExtractor]]:
    """All images, what is measured, and the networks for it.

    What can be refused is refused in this order: without a private image, before the evaluation is counted; with them,
    before an image is drawn or a network is fitted.
    """
    flags, release, synthetic = inputs.flags, inputs.release, inputs.synthetic()
    asked = flags.extractors or ()
    networks: dict[str, FeatureExtractor] = {}
    if "inception" in asked:
        networks["inception"] = InceptionExtractor(flags.inception_weights, device)
    if EFFICIENTNET in asked:
        networks[EFFICIENTNET] = EfficientNetExtractor(device)
    known = AvailableImages(
        release.drawing.num_images if release else len(synthetic), synthetic.labels is not None,
        inputs.test_split is not None,
        {"classifier": DIMENSION, **{name: network.facts["dimension"] for name, network in networks.items()}},
    )  # fmt: skip
    choose(flags, known)
    inputs.warnings += _count(flags, release)
    sets = inputs.real_sets()
    real, test = sets["real training"], sets.get("real test")
    labelled = with_classes_of(synthetic, real)[0].labels is not None
    classes = None if real.labels is None else len(np.unique(real.labels))
    known = replace(
        known, labelled=labelled, real=len(real), classes=classes, test=None if test is None else len(test)
    )
    choice = choose(flags, known)
    begun()  # from here on drawn images may lie there
    if release is not None:
        inputs.draw(pool)
        synthetic = inputs.synthetic()
    return inputs.matched(synthetic, sets), choice, networks


@public_files()
def count_evaluation(release: str | Path) -> None:
    """Increments the receipt's `private_evaluations`, which the hashes leave out. Call it before reading the private
    images.

    The folder is locked itself, and the new receipt is written beside it, so that the release never contains a file
    that the receipt does not list.

    Raises:
        UsageError: The folder contains no release, or cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release).resolve()
    beside = folder.with_name(f".{folder.name}.{RECEIPT_NAME}")
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            receipt, problems = verify_here(folder, "--model")
            if problems:
                raise IntegrityError(f"--model {folder}: {problems[0]} Restore the release first.")
            receipt["private_evaluations"] += 1
            write_synced(beside, canonical_json(receipt).encode())
            os.replace(beside, folder / RECEIPT_NAME)
            sync_folder(folder)
        finally:
            os.close(lock)
    except OSError as error:
        raise UsageError(f"--model {folder} cannot be written ({error.strerror}); copy it elsewhere.") from None
