# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate`: are these images good enough to share? A report of numbers and pictures against real images.

diffusers-dp evaluate --model runs/mnist/release --real ylecun/mnist
diffusers-dp evaluate --images synthetic --real path/to/scans --class_names benign,malignant
"""

import argparse
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DiffusersDPError, UsageError
from . import evaluate_flags, sample
from .evaluate_flags import METRICS, SETTINGS, add_arguments
from .evaluate_inputs import Release, curve_points, find_shape, read, sources_of


if TYPE_CHECKING:
    from ..evaluation.evaluator import Plan
    from ..evaluation.images import ImageSet
    from ..evaluation.report import Evaluation
    from ..evaluation.training_curve import CurvePoint, KeptState

__all__ = ["add_arguments", "run"]

CACHES = ("cache", "features", "steps")


def run(args: argparse.Namespace) -> None:
    from ..evaluation.figures import check_plotting
    from ..evaluation.report import PAGE_NAME, release_facts

    check_plotting()
    evaluate_flags.check(args)
    release, states = _open_release(args)
    facts = release_facts(release.folder if release else Path(args.images))
    _check_reference(args, facts)
    with _folder(args) as (folder, begun):
        sources = sources_of(args)
        shape = find_shape(args, sources, release, folder / "cache")
        notes = _count(args, release)
        if release is not None:
            begun()  # from here on drawn images may lie there
        sets, warnings = read(args, sources, shape, release, facts, folder)
        evaluate_flags.check_utility_sizes(args, len(sets["synthetic"]))
        begun()
        _fill_in(args, labelled=sets["synthetic"].labels is not None)
        points = curve_points(args, states, release, shape) if release is not None else iter(())
        evaluation = _evaluation(args, sets, notes + warnings, facts)
        _measure(args, evaluation, points, folder)
    if args.publish_metrics:
        _publish(args, evaluation)
    print(f"Written to {folder / PAGE_NAME}; private data read: {'no' if args.real_is_public else 'yes'}.")


def _open_release(args: argparse.Namespace) -> "tuple[Release | None, list[KeptState]]":
    """The verified release, if images are to be drawn, and what its run kept, if that is asked for."""
    if args.model is None:
        return None, []
    from ..evaluation.amendments import check_writable, recover
    from ..evaluation.training_curve import kept_states
    from ..hub import fetch_release

    folder = fetch_release(args.model)
    if folder == Path(args.model):
        recover(folder)
    states = kept_states(folder) if args.training_curve else []
    if args.publish_metrics:
        check_writable(folder)
    return Release(folder, sample.load(folder, args)), states


def _check_reference(args: argparse.Namespace, facts: dict[str, Any] | None) -> None:
    if not args.dp_reference:
        return
    if facts is None:
        raise UsageError(
            "--dp_reference needs the epsilon of a release; give --model, or --images of `diffusers-dp sample`."
        )
    if facts["unit_of_privacy"] != "image":
        raise UsageError(
            f"--dp_reference protects single images, and the release {facts['unit_of_privacy']} by {facts['unit_of_privacy']}; leave it out."
        )


@contextmanager
def _folder(args: argparse.Namespace) -> "Iterator[tuple[Path, Any]]":
    """Where everything goes, mode 700 and for one command at a time; what was made for a command that is refused is removed, until
    `begun()` is called."""
    root = args.output_dir
    if root is None:
        local = args.model is not None and Path(args.model).is_dir()
        root = Path(args.model).resolve().parent if local else Path("runs", "evaluation")
    parts = ("evaluation",) if args.real_is_public else ("private", "unprotected", "evaluation")
    folder = root.joinpath(*parts)
    made: Path | None = next((path for path in (*reversed(folder.parents), folder) if not path.exists()), None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"--output_dir {root} cannot be used ({error.strerror}); give another folder.") from None
    state = {"begun": False}
    try:
        _take(lock, root)
        _close_to_others(args, root, folder)
        if not args.real_is_public:
            print(f"This reads private data: everything stays in {folder}.")
        yield folder, lambda: state.update(begun=True)
    except DiffusersDPError:
        if made is not None and not state["begun"]:
            shutil.rmtree(made)
        raise
    finally:
        os.close(lock)


def _take(lock: int, root: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"--output_dir {root} is in use by another evaluation; wait for it, or give another folder."
        ) from None


def _close_to_others(args: argparse.Namespace, root: Path, folder: Path) -> None:
    outer = [] if args.real_is_public else [folder.parent, folder.parent.parent]
    try:
        for path in (*outer, folder, *(folder / name for name in CACHES)):
            path.mkdir(exist_ok=True)
            path.chmod(0o700)
    except OSError as error:
        raise UsageError(f"--output_dir {root} cannot be used ({error.strerror}); give another folder.") from None


def _count(args: argparse.Namespace, release: Release | None) -> list[str]:
    """Before more than a size of the private images is read: adds one to the receipt, or says that nobody counts."""
    if args.real_is_public:
        return []
    from ..evaluation.amendments import count_evaluation, is_writable

    if release is not None and Path(args.model).is_dir() and is_writable(release.folder):
        count_evaluation(release.folder)
        return []
    where = "no release was given" if release is None else "the release cannot be written here"
    if args.model is not None and not Path(args.model).is_dir():
        where = "the release lies on the Hub"
    note = (
        f"This evaluation is not counted in any receipt's private_evaluations, for {where}: keep count of it yourself."
    )
    print(note)
    return [note]


def _fill_in(args: argparse.Namespace, *, labelled: bool) -> None:
    """What flags leave open depends on whether there are labels."""
    args.metrics = args.metrics or [name for name in METRICS if labelled or name != "class_fid"]
    args.extractors = args.extractors or (["pixels", "classifier"] if labelled else ["pixels"])
    args.classifiers = args.classifiers or (["logreg", "cnn"] if labelled else [])
    for name, wanted in (
        ("selection private", args.selection == "private"),
        ("model_selection", args.model_selection),
        ("dp_reference", args.dp_reference),
    ):
        if wanted and not labelled:
            raise UsageError(
                f"--{name} needs labelled images; name their column with --label_column, or leave it out."
            )


def _evaluation(
    args: argparse.Namespace, sets: "dict[str, ImageSet]", warnings: list[str], facts: dict[str, Any] | None
) -> "Evaluation":
    from ..evaluation.report import Evaluation

    settings = {name: getattr(args, name) for name in SETTINGS}
    return Evaluation(not args.real_is_public, settings, sets, facts, warnings=warnings)


def _measure(args: argparse.Namespace, evaluation: "Evaluation", points: "Iterator[CurvePoint]", folder: Path) -> None:
    """All numbers, and both files of the report."""
    from ..evaluation.evaluator import Evaluator
    from ..evaluation.page import build_page
    from ..evaluation.pictures import build_charts, build_neighbours, build_samples
    from ..evaluation.report import write_report

    evaluator = Evaluator(_plan(args, evaluation), folder, evaluation.image_sets)
    evaluator.fill(evaluation, points)
    charts = build_charts(evaluation, (*evaluator.embedding(args.extractors[-1]), args.extractors[-1]))
    neighbours = build_neighbours(evaluation, evaluator) if args.show_private else []
    write_report(evaluation, build_page(evaluation, charts, build_samples(evaluation), neighbours), folder)


def _plan(args: argparse.Namespace, evaluation: "Evaluation") -> "Plan":
    import torch

    from ..evaluation.evaluator import Plan
    from ..evaluation.utility import PrivateSelection

    selection, budget = None, None
    if args.selection == "private":
        ledger = evaluate_flags.validation_ledger(args)
        selection = PrivateSelection(
            evaluation.image_sets["real validation"], args.selection_epsilon, args.selection_delta, ledger
        )
    if args.dp_reference:
        assert evaluation.release is not None  # _check_reference looked
        budget = (evaluation.release["epsilon_by_pld"], evaluation.release["delta"])
    same = (
        "metrics", "extractors", "classifiers", "seed", "repetitions", "ensemble", "classifier_epochs", "utility_sizes", "reference",
        "model_selection", "inception_weights", "dinov2_model", "real_is_public",
    )  # fmt: skip
    device = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    return Plan(**{name: getattr(args, name) for name in same}, device=device, selection=selection, dp_budget=budget)


def _publish(args: argparse.Namespace, evaluation: "Evaluation") -> None:
    from ..evaluation.amendments import publish

    publish(args.model, evaluation.measurements, read_private_data=not args.real_is_public)
    print(f"The numbers of the whole release are in the card of {args.model}.")
