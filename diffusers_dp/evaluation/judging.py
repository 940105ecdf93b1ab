# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One evaluation from its flags to its report: what is refused, what is counted, and where everything goes."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..distributed.worker_pool import WorkerPool
from ..errors import DiffusersDPError, UsageError
from ..files.file_modes import public_files
from ..files.output_files import write_json, write_text
from ..queries.efficientnet import EFFICIENTNET
from ..release.hub import fetch_release
from ..release.loading import release_in
from ..release.marked import refuse_marked
from ..sampling.drawing import Drawing
from ..sampling.shards import Drawer
from .amendments import count_evaluation, is_writable
from .analyses import AvailableImages
from .choice import MeasurementPlan, choose
from .classifier_features import DIMENSION
from .evaluator import Evaluator
from .extractors import EfficientNetExtractor, FeatureExtractor, InceptionExtractor
from .flags import EvaluationFlags
from .images import ImageSet, with_classes_of
from .inputs import Inputs, judged_facts
from .pictures import check_plotting
from .report import PAGE_NAME, REPORT_NAME, Evaluation
from .report_page import report_page
from .summary import verdict


CACHES = ("cache", "features", "steps")
#: Flags that decide numbers, as the report states them, besides those of drawing.
SETTINGS = (
    "quick", "repetitions", "ensemble", "classifier_epochs", "cifar_networks", "utility_sizes", "reference",
    "selection", "train_split",
    "validation_size", "resize", "real_is_public",
)  # fmt: skip


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
    check_plotting()
    release = None if flags.model is None else _open_release(flags.model, drawing, device, base)
    facts = judged_facts(flags, release)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with _folder(flags) as (folder, begun):
        inputs = Inputs(flags, drawing.seed, release, facts, folder / "cache")
        sets, choice, networks = _read(inputs, device, begun, pool)
        evaluator = Evaluator(flags, choice, folder, sets, drawing.seed, device, networks, pool)
        settings = {
            **drawing.facts, **{name: getattr(flags, name) for name in SETTINGS}, "num_images": flags.num_judged,
            "test_split": inputs.test_split, "trajectory_length": drawing.trajectory_length,
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
    if released is not None and Path(released).is_dir() and is_writable(released):
        count_evaluation(released)
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
