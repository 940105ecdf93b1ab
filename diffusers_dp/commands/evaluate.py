# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate`: are these images good enough to share? A report of numbers and pictures against real
images.

diffusers-dp evaluate --model runs/mnist/release --real ylecun/mnist
diffusers-dp evaluate --images synthetic --real path/to/scans --class_names benign,malignant
"""

import argparse
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed.worker_pool import WorkerPool, lead
from ..errors import DiffusersDPError, UsageError
from ..evaluation.flags import EvaluationFlags
from ..files.file_modes import private_files, public_files
from ..methods.command_line import add_flags
from ..methods.flag import validate
from ..sampling.drawing import Drawing
from ..sampling.shards import Drawer
from .evaluate_inputs import Inputs, curve_points, draw, judged_facts, matched
from .sample import add_drawing_arguments, drawing_of


if TYPE_CHECKING:
    from ..evaluation.choice import Choice
    from ..evaluation.extractors import FeatureExtractor
    from ..evaluation.images import ImageSet
    from ..evaluation.training_curve import EarlierState
    from ..evaluation.utility import PrivateSelection

CACHES = ("cache", "features", "steps")
#: Flags that decide numbers, as the report states them, besides those of drawing.
SETTINGS = (
    "quick", "repetitions", "ensemble", "classifier_epochs", "cifar_networks", "utility_sizes", "reference",
    "selection", "selection_epsilon", "model_selection", "dp_reference", "training_curve", "train_split",
    "validation_size", "resize", "real_is_public",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "diffusers-dp evaluate (--model RELEASE | --images DATASET) [--real DATASET] [flags, see --help]"
    add_flags(parser, EvaluationFlags)
    add_drawing_arguments(parser)


def run(args: argparse.Namespace) -> None:
    flags = EvaluationFlags(**{each.name: getattr(args, each.name) for each in fields(EvaluationFlags)})
    with private_files():
        lead(lambda pool: _evaluate(flags, args, pool))


def _evaluate(flags: EvaluationFlags, args: argparse.Namespace, pool: WorkerPool) -> None:
    from ..evaluation.pictures import check_plotting

    check_plotting()
    validate(flags)
    drawing = drawing_of(args, flags.num_judged or 1)
    from ..evaluation.evaluator import Evaluator  # loads torch
    from ..evaluation.page import report_page
    from ..evaluation.report import PAGE_NAME, Evaluation, write_report
    from ..evaluation.summary import verdict

    release, states = _open_release(flags, drawing, args.device, args.base)
    facts = judged_facts(flags, release)
    with _folder(flags) as (folder, begun):
        features, device = _features(flags, release, drawing.seed), _device(args.device)
        inputs = Inputs(flags, drawing.seed, release, facts, folder / "cache")
        sets, warnings, choice, networks = _read(inputs, device, begun, pool)
        settings = _settings(flags, drawing, inputs.test_split, choice)
        evaluation = Evaluation(not flags.real_is_public, settings, sets, facts, warnings=warnings)
        points = () if release is None else curve_points(release, states, choice.extractors[0], inputs.shape, pool)
        Evaluator(
            flags, choice, folder, sets, seed=drawing.seed, device=device, networks=networks, pool=pool,
            counted=flags.real_is_public, selection=_selection(flags, sets), points=points, features=features,
            dp_budget=None if facts is None else (facts["epsilon_by_pld"], facts["delta"]),
        ).fill(evaluation)  # fmt: skip
        write_report(evaluation, report_page(evaluation), folder)
    print(*verdict(evaluation), sep="\n")
    if flags.publish_metrics and flags.model is not None:
        from ..evaluation.amendments import publish

        publish(flags.model, evaluation.measurements, read_private_data=not flags.real_is_public)
        print(f"The numbers of the whole release are in the card of {flags.model}.")
    print(f"Written to {folder / PAGE_NAME}; private data read: {'no' if flags.real_is_public else 'yes'}.")


def _open_release(
    flags: EvaluationFlags, drawing: Drawing, device: str, base: str | None
) -> "tuple[Drawer | None, list[EarlierState]]":
    """The verified release, if images are to be drawn, and what its run kept, if that is asked for."""
    if flags.model is None:
        return None, []
    from ..evaluation.amendments import check_writable, recover
    from ..release.hub import fetch_release
    from ..release.no_guarantee import refuse_without_guarantee
    from ..runs.kept_states import kept_states

    folder = fetch_release(flags.model, flag="--model")
    refuse_without_guarantee(
        folder, "--model", "where it is a pipeline, give images that were drawn from it as --images"
    )
    if folder == Path(flags.model):
        recover(folder)
    states = kept_states(folder) if flags.training_curve else []
    if flags.publish_metrics:
        check_writable(folder)
    return Drawer.of(flags.model, drawing, device, base), states


@contextmanager
def _folder(flags: EvaluationFlags) -> "Iterator[tuple[Path, Callable[[], None]]]":
    """Where everything goes, mode 700 and for one command at a time; what was made for a command that is refused is
    removed, until `begun()` is called."""
    root = flags.output_dir
    if root is None:
        local = flags.model is not None and Path(flags.model).is_dir()
        root = Path(flags.model or "").resolve().parent if local else Path("runs", "evaluation")
    parts = ("evaluation",) if flags.real_is_public else ("private", "unprotected", "evaluation")
    folder = root.joinpath(*parts)
    made, lock = None, None
    begun: list[bool] = []
    try:
        try:
            made = next((path for path in (*reversed(folder.parents), folder) if not path.exists()), None)
            with public_files():
                root.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            outer = [] if flags.real_is_public else [folder.parent, folder.parent.parent]
            for path in (*outer, folder, *(folder / name for name in CACHES)):
                path.mkdir(exist_ok=True)
                path.chmod(0o700)
        except BlockingIOError:
            made = None  # the other's
            raise UsageError(
                f"--output_dir {root} is in use by another evaluation; wait for it, or give another folder."
            ) from None
        except OSError as error:
            raise UsageError(f"--output_dir {root} cannot be used ({error.strerror}); give another folder.") from None
        if not flags.real_is_public:
            print(f"This reads private data: everything stays in {folder}.")
        yield folder, lambda: begun.append(True)
    except DiffusersDPError:
        if made is not None and not begun:
            shutil.rmtree(made, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _count(flags: EvaluationFlags, release: Drawer | None) -> list[str]:
    """Before more than a size of the private images is read: adds one to the receipt, or says that nobody counts."""
    if flags.real_is_public:
        return []
    from ..evaluation.amendments import count_evaluation, is_writable
    from ..release.loading import release_in

    released = flags.images if release is None and release_in(flags.images or "").holds_images else flags.model
    if released is not None and Path(released).is_dir() and is_writable(Path(released)):
        count_evaluation(Path(released))
        return []
    where = "no release was given" if released is None else "the release cannot be written here"
    if released is not None and not Path(released).is_dir():
        where = "the release lies on the Hub"
    note = (
        f"This evaluation is not counted in any receipt's private_evaluations, for {where}: keep count of it yourself."
    )
    print(note)
    return [note]


def _read(
    inputs: Inputs, device: str, begun: Callable[[], None], pool: WorkerPool
) -> "tuple[dict[str, ImageSet], list[str], Choice, dict[str, FeatureExtractor]]":
    """All images, what is to be warned of, what is measured, and the networks for it.

    What can be refused is refused in this order: without a private image, before the evaluation is counted; with them,
    before an image is drawn or a network is fitted.
    """
    from ..evaluation.analyses import Known
    from ..evaluation.choice import choose
    from ..evaluation.classifier_features import DIMENSION
    from ..evaluation.extractors import load_networks
    from ..evaluation.images import with_classes_of

    flags, release = inputs.flags, inputs.release
    synthetic, public = inputs.stand_in() if release else inputs.synthetic(), None
    if flags.public_images is not None:
        public = inputs.load("public")
    count = release.drawing.num_images if release else len(synthetic)
    flags.check_sizes(count)
    networks = load_networks(flags, device)
    known = Known(
        count, synthetic.labels is not None, inputs.test_split is not None,
        {"classifier": DIMENSION, **{name: network.facts["dimension"] for name, network in networks.items()}},
        public=None if public is None else len(public),
    )  # fmt: skip
    choose(flags, known)
    warnings = _count(flags, release)
    sets, of_real = inputs.real()
    real, test = sets["real training"], sets.get("real test")
    labelled = with_classes_of(synthetic, real)[0].labels is not None
    choice = choose(flags, replace(known, labelled=labelled, real=real, test=None if test is None else len(test)))
    begun()  # from here on drawn images may lie there
    if release is not None:
        inputs.sources["synthetic"] = draw(release, inputs.cache.parent, pool)
        synthetic = inputs.synthetic()
    sets, of_classes = matched(synthetic, sets)
    if public is not None:
        sets["public"] = public
    return sets, warnings + of_real + of_classes + choice.warnings, choice, networks


def _settings(flags: EvaluationFlags, drawing: Drawing, test_split: str | None, choice: "Choice") -> dict[str, Any]:
    """The settings of the report, with what was found in the place of what was unset."""
    found: dict[str, Any] = {"num_images": flags.num_judged, "selection_delta": flags.delta, "test_split": test_split}
    found |= {"trajectory_length": drawing.trajectory_length, **choice.measured}
    return {**drawing.facts, **{name: getattr(flags, name) for name in SETTINGS}, **found}


def _selection(flags: EvaluationFlags, sets: "dict[str, ImageSet]") -> "PrivateSelection | None":
    from ..evaluation.utility import PrivateSelection

    if flags.selection != "private":
        return None
    assert flags.selection_epsilon is not None and flags.delta is not None  # `check` looked
    return PrivateSelection(sets["real validation"], flags.selection_epsilon, flags.delta, flags.ledger)


def _device(name: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _features(flags: EvaluationFlags, release: Drawer | None, seed: int) -> "dict[str, ImageSet]":
    """What the run of a local release learned from before DP-SGD, for complexity."""
    if (
        release is None
        or "complexity" not in (flags.metrics or ["complexity"])
        or not Path(release.release.name).is_dir()
    ):
        return {}
    from ..evaluation.warm_up_features import warm_up_features

    return warm_up_features(release.release.folder, release.release.image_shape, seed=seed)
