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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed.worker_pool import WorkerPool, lead
from ..errors import DiffusersDPError, UsageError
from ..files.file_modes import private_files, public_files
from ..sampling.shards import Drawer
from . import evaluate_flags
from .evaluate_flags import add_arguments, num_images_of, settings_of
from .evaluate_inputs import (
    curve_points,
    draw,
    find_shape,
    judged_folder,
    match,
    read_public,
    read_real,
    read_synthetic,
    sources_of,
    stand_in,
)
from .sample import drawing_of


if TYPE_CHECKING:
    from ..evaluation.evaluator import EvaluationPlan
    from ..evaluation.extractors import FeatureExtractor
    from ..evaluation.images import ImageSet, Shape, Source
    from ..evaluation.report import Evaluation
    from ..evaluation.training_curve import CurvePoint, KeptState
    from .evaluate_choice import Choice

__all__ = ["add_arguments", "run"]

CACHES = ("cache", "features", "steps")


def run(args: argparse.Namespace) -> None:
    with private_files():
        lead(lambda pool: _evaluate(args, pool))


def _evaluate(args: argparse.Namespace, pool: WorkerPool) -> None:
    from ..evaluation.figures import check_plotting
    from ..evaluation.report import PAGE_NAME, Evaluation, release_facts

    check_plotting()
    evaluate_flags.check(args)
    release, states = _open_release(args)
    facts = release_facts(judged_folder(args, release))
    _check_reference(args, facts)
    with _folder(args) as (folder, begun):
        sources = sources_of(args)
        features = _features(args, release)
        shape, test_split = find_shape(args, sources, release, folder / "cache")
        sets, warnings, choice, networks = _read(args, sources, shape, test_split, release, facts, folder, begun, pool)
        points = iter(()) if release is None else curve_points(release, states, choice.extractors[0], shape, pool)
        settings = settings_of(args, {"test_split": test_split, **choice.measured})
        evaluation = Evaluation(not args.real_is_public, settings, sets, facts, warnings=warnings)
        _measure(args, evaluation, points, folder, choice, networks, features, pool)
    if args.publish_metrics:
        _publish(args, evaluation)
    print(f"Written to {folder / PAGE_NAME}; private data read: {'no' if args.real_is_public else 'yes'}.")


def _open_release(args: argparse.Namespace) -> "tuple[Drawer | None, list[KeptState]]":
    """The verified release, if images are to be drawn, and what its run kept, if that is asked for."""
    if args.model is None:
        return None, []
    from ..evaluation.amendments import check_writable, recover
    from ..release.hub import fetch_release
    from ..release.no_guarantee import refuse_without_guarantee
    from ..runs.kept_states import kept_states

    folder = fetch_release(args.model, flag="--model")
    refuse_without_guarantee(
        folder, "--model", "where it is a pipeline, give images that were drawn from it as --images"
    )
    if folder == Path(args.model):
        recover(folder)
    states = kept_states(folder) if args.training_curve else []
    if args.publish_metrics:
        check_writable(folder)
    return Drawer.of(args.model, drawing_of(args, num_images_of(args) or 1), args.device, args.base), states


def _check_reference(args: argparse.Namespace, facts: dict[str, Any] | None) -> None:
    if not args.dp_reference:
        return
    if facts is None:
        raise UsageError(
            "--dp_reference needs the epsilon of a release; give --model, or --images of `diffusers-dp sample`."
        )
    if facts["unit_of_privacy"] != "image":
        raise UsageError(
            f"--dp_reference protects single images, and the release {facts['unit_of_privacy']} by "
            f"{facts['unit_of_privacy']}; leave it out."
        )


@contextmanager
def _folder(args: argparse.Namespace) -> "Iterator[tuple[Path, Any]]":
    """Where everything goes, mode 700 and for one command at a time; what was made for a command that is refused is
    removed, until `begun()` is called."""
    root = args.output_dir
    if root is None:
        local = args.model is not None and Path(args.model).is_dir()
        root = Path(args.model).resolve().parent if local else Path("runs", "evaluation")
    parts = ("evaluation",) if args.real_is_public else ("private", "unprotected", "evaluation")
    folder = root.joinpath(*parts)
    try:
        made: Path | None = next((path for path in (*reversed(folder.parents), folder) if not path.exists()), None)
        with public_files():
            root.mkdir(parents=True, exist_ok=True)
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


def _count(args: argparse.Namespace, release: Drawer | None) -> list[str]:
    """Before more than a size of the private images is read: adds one to the receipt, or says that nobody counts."""
    if args.real_is_public:
        return []
    from ..evaluation.amendments import count_evaluation, is_writable
    from ..release.loading import release_in

    released = args.images if release is None and release_in(args.images or "").holds_images else args.model
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
    args: argparse.Namespace,
    sources: "dict[str, Source]",
    shape: "Shape",
    test_split: str | None,
    release: Drawer | None,
    facts: dict[str, Any] | None,
    folder: Path,
    begun: Callable[[], None],
    pool: WorkerPool,
) -> "tuple[dict[str, ImageSet], list[str], Choice, dict[str, FeatureExtractor]]":
    """All images, what is to be warned of, what is measured, and the networks for it.

    What can be refused is refused in this order: without a private image, before the evaluation is counted; with them,
    before an image is drawn or a network is fitted.
    """
    from ..evaluation.images import with_classes_of
    from .evaluate_choice import Known, choose, load_networks

    synthetic = stand_in(release, shape) if release else read_synthetic(args, sources["synthetic"], shape, folder)
    public = read_public(args, sources["public"], shape, folder) if "public" in sources else None
    count = release.drawing.num_images if release else len(synthetic)
    evaluate_flags.check_utility_sizes(args.utility_sizes, count)
    networks = load_networks(args, _device(args))
    known = Known(
        count, synthetic.labels is not None, test_split is not None,
        {name: network.facts["dimension"] for name, network in networks.items()},
        public=None if public is None else len(public),
    )  # fmt: skip
    choose(args, known)
    warnings = _count(args, release)
    sets, of_real = read_real(args, sources, shape, test_split, facts, folder)
    real, test = sets["real training"], sets.get("real test")
    labelled = with_classes_of(synthetic, real)[0].labels is not None
    choice = choose(args, replace(known, labelled=labelled, real=real, test=None if test is None else len(test)))
    begun()  # from here on drawn images may lie there
    if release is not None:
        synthetic = read_synthetic(args, draw(release, folder, pool), shape, folder)
    sets, of_classes = match(synthetic, sets)
    if public is not None:
        sets["public"] = public
    return sets, warnings + of_real + of_classes + choice.warnings, choice, networks


def _device(args: argparse.Namespace) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device


def _measure(
    args: argparse.Namespace,
    evaluation: "Evaluation",
    points: "Iterator[CurvePoint]",
    folder: Path,
    choice: "Choice",
    networks: "dict[str, FeatureExtractor]",
    features: "dict[str, ImageSet]",
    pool: WorkerPool,
) -> None:
    """All numbers, and both files of the report."""
    from ..evaluation.evaluator import Evaluator
    from ..evaluation.page import build_page
    from ..evaluation.pictures import build_charts, build_neighbours, build_samples
    from ..evaluation.report import write_report

    plan = _plan(args, evaluation, choice)
    evaluator = Evaluator(plan, folder, evaluation.image_sets, networks, pool)
    evaluator.fill(evaluation, points, features)
    last = choice.extractors[-1]
    charts = build_charts(evaluation, (*evaluator.embedding(last), last))
    neighbours = build_neighbours(evaluation, evaluator) if args.show_private else []
    write_report(evaluation, build_page(evaluation, charts, build_samples(evaluation), neighbours), folder)


def _features(args: argparse.Namespace, release: Drawer | None) -> "dict[str, ImageSet]":
    """What the run of a local release learned from before DP-SGD, for complexity."""
    if release is None or "complexity" not in (args.metrics or ["complexity"]) or not Path(args.model).is_dir():
        return {}
    from ..evaluation.warm_up_features import warm_up_features

    return warm_up_features(release.release.folder, release.release.image_shape, seed=args.seed)


def _plan(args: argparse.Namespace, evaluation: "Evaluation", choice: "Choice") -> "EvaluationPlan":
    from ..evaluation.evaluator import EvaluationPlan
    from ..evaluation.utility import PrivateSelection

    settings, selection, budget = evaluation.settings, None, None
    if args.selection == "private":
        ledger = evaluate_flags.validation_ledger(args)
        selection = PrivateSelection(
            evaluation.image_sets["real validation"],
            settings["selection_epsilon"],
            settings["selection_delta"],
            ledger,
        )
    if args.dp_reference:
        assert evaluation.release is not None  # _check_reference looked
        budget = (evaluation.release["epsilon_by_pld"], evaluation.release["delta"])
    same = (
        "metrics", "extractors", "classifiers", "seed", "repetitions", "ensemble", "classifier_epochs",
        "cifar_networks", "utility_sizes", "reference", "model_selection", "real_is_public",
    )  # fmt: skip
    return EvaluationPlan(
        **{name: settings[name] for name in same}, device=_device(args), selection=selection, dp_budget=budget,
        left_out=choice.left_out,
    )  # fmt: skip


def _publish(args: argparse.Namespace, evaluation: "Evaluation") -> None:
    from ..evaluation.amendments import publish

    publish(args.model, evaluation.measurements, read_private_data=not args.real_is_public)
    print(f"The numbers of the whole release are in the card of {args.model}.")
