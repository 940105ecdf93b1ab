# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate`: are these images good enough to share? A report of numbers and pictures against real images.

diffusers-dp evaluate --model runs/mnist/release --real ylecun/mnist
diffusers-dp evaluate --images synthetic --real path/to/scans --class_names benign,malignant
"""

import argparse
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DiffusersDPError, UsageError
from . import sample


if TYPE_CHECKING:
    from ..evaluation.images import ImageSet, Shape, Source
    from ..evaluation.report import Evaluation
    from ..pipelines import DPImagePipeline

METRICS = ("fid", "kid", "inception_score", "precision_recall", "fld", "class_fid")
EXTRACTORS = ("pixels", "classifier", "inception", "dinov2")
CLASSIFIERS = ("logreg", "mlp", "cnn", "wrn", "resnet", "resnext")
DEFAULT_NUM_IMAGES = 10_000
#: Flags that decide numbers, as the report states them.
SETTINGS = (
    "metrics", "extractors", "classifiers", "repetitions", "num_images", "num_inference_steps", "solver", "guidance_scale",
    "train_split", "test_split", "validation_size", "resize", "seed", "real_is_public",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    judged = parser.add_mutually_exclusive_group(required=True)
    judged.add_argument("--model", metavar="RELEASE", help="Release to draw from: a folder, or a Hub id.")
    judged.add_argument("--images", metavar="DATASET", help="Synthetic images, of `diffusers-dp sample` for instance.")
    parser.add_argument("--images_split", default="train", help="Split of --images.")
    parser.add_argument(
        "--num_images", type=int, help=f"Images to draw (unset: {DEFAULT_NUM_IMAGES}), or of --images at most."
    )
    sample.add_drawing_arguments(parser)
    parser.add_argument("--real", metavar="DATASET", help="Real images: Hub id or folder; unset: the embedded digits.")
    parser.add_argument("--train_split", default="train", help="Split of --real that fidelity is measured against.")
    parser.add_argument("--test_split", default="test", help="Split of --real that classifiers are tested on.")
    parser.add_argument(
        "--validation_size", type=int, default=0, help="Images left out of --train_split, as published."
    )
    parser.add_argument("--image_column", default="image", help="Column of the images, in --real and --images.")
    parser.add_argument("--label_column", help="Column of the classes, in --real and --images; unset: 'label'.")
    parser.add_argument("--class_names", help="The label set, comma-separated; unset: that of the ClassLabel.")
    parser.add_argument("--public_images", metavar="DATASET", help="Public images: is the model closer to them?")
    parser.add_argument("--public_image_column", default="image", help="Column of --public_images, split train.")
    parser.add_argument("--resize", action="store_true", help="Make images of other sizes and channels fit.")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, help="Of fidelity; unset: all that apply.")
    parser.add_argument(
        "--extractors", nargs="+", choices=EXTRACTORS, help="Feature spaces; unset: pixels classifier."
    )
    parser.add_argument("--inception_weights", type=Path, metavar="FILE", help="Unset: downloaded.")
    parser.add_argument("--dinov2_model", default="facebook/dinov2-large", help="Folder, or Hub id.")
    parser.add_argument("--classifiers", nargs="+", choices=CLASSIFIERS, help="Of utility; unset: logreg cnn.")
    parser.add_argument("--repetitions", type=int, default=1, help="Seeds of each classifier.")
    parser.add_argument("--real_is_public", action="store_true", help="The real images are public: nothing is marked.")
    parser.add_argument("--show_private", action="store_true", help="Show single real images, next to synthetic ones.")
    parser.add_argument("--publish_metrics", action="store_true", help="Put the numbers into the card of --model.")
    parser.add_argument("--output_dir", type=Path, help="Unset: the folder that holds --model, or runs/evaluation.")


def run(args: argparse.Namespace) -> None:
    from ..evaluation.figures import check_plotting
    from ..evaluation.report import PAGE_NAME

    check_plotting()
    release, pipeline = _open_release(args)
    with _folder(args) as (folder, begun):
        sources = _sources(args)
        shape = _common_shape(args, sources, pipeline, folder)
        _count(args, release)
        sets, warnings = _read(args, sources, shape, release, pipeline, folder)
        begun()
        evaluation = _measure(args, sets, warnings, release, folder)
    if args.publish_metrics:
        from ..evaluation.amendments import publish

        publish(args.model, evaluation.measurements, read_private_data=not args.real_is_public)
        print(f"The numbers are in the card of {args.model}.")
    print(f"Written to {folder / PAGE_NAME}; private data read: {'no' if args.real_is_public else 'yes'}.")


def _open_release(args: argparse.Namespace) -> "tuple[Path | None, DPImagePipeline | None]":
    """The verified release and its pipeline, if images are to be drawn; all flags are looked at."""
    for name in ("num_images", "repetitions"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}; give an integer of at least 1.")
    if args.validation_size < 0:
        raise UsageError(f"--validation_size is {args.validation_size}; give an integer of at least 0.")
    if args.model is None:
        if args.publish_metrics:
            raise UsageError("--publish_metrics needs a release whose card can be written; give --model.")
        sample.check(argparse.Namespace(**{**vars(args), "num_images": args.num_images or 1}))
        return None, None
    from ..evaluation.amendments import check_writable
    from ..hub import fetch_release

    args.num_images = args.num_images or DEFAULT_NUM_IMAGES
    sample.check(args)
    release = fetch_release(args.model)
    if args.publish_metrics:
        if not Path(args.model).is_dir():
            raise UsageError(
                f"--publish_metrics writes into a folder, and --model {args.model} is none; download it first."
            )
        check_writable(release)
    return release, sample.load(release, args)


@contextmanager
def _folder(args: argparse.Namespace) -> "Iterator[tuple[Path, Any]]":
    """Where everything goes, mode 700; what was made for a command that is refused is removed, until `begun()` is called."""
    root = args.output_dir
    if root is None:
        local = args.model is not None and Path(args.model).is_dir()
        root = Path(args.model).resolve().parent if local else Path("runs", "evaluation")
    parts = ("evaluation",) if args.real_is_public else ("private", "unprotected", "evaluation")
    folder = root.joinpath(*parts)
    made: Path | None = next((path for path in (*reversed(folder.parents), folder) if not path.exists()), None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *([] if args.real_is_public else [folder.parent, folder.parent.parent])):
            path.chmod(0o700)
    except OSError as error:
        raise UsageError(f"--output_dir {root} cannot be used ({error.strerror}); give another folder.") from None
    if not args.real_is_public:
        print(f"This reads private data: everything stays in {folder}.")
    state = {"begun": False}
    try:
        yield folder, lambda: state.update(begun=True)
    except DiffusersDPError:
        if made is not None and not state["begun"]:
            shutil.rmtree(made)
        raise


def _sources(args: argparse.Namespace) -> "dict[str, Source]":
    from ..evaluation.images import Source

    columns = {"image_column": args.image_column, "label_column": args.label_column, "class_names": args.class_names}
    sources = {"real": Source("--real", args.real, **columns)}
    if args.images is not None:
        sampled = (Path(args.images) / sample.PARAMETERS_NAME).is_file()
        sources["synthetic"] = Source(
            "--images", args.images, split_flag="--images_split", **({} if sampled else columns)
        )
    if args.public_images is not None:
        sources["public"] = Source("--public_images", args.public_images, args.public_image_column)
    return sources


def _common_shape(
    args: argparse.Namespace, sources: "dict[str, Source]", pipeline: "DPImagePipeline | None", folder: Path
) -> "Shape":
    from ..evaluation.images import common_shape

    if pipeline is None:
        synthetic, flag = sources["synthetic"].shape(args.images_split, folder / "cache"), "--images"
    else:
        patch, unet, flag = pipeline.config.patch_size, pipeline.unet.config, "--model"
        side = (unet.sample_size, unet.sample_size) if isinstance(unet.sample_size, int) else unet.sample_size
        synthetic = (unet.in_channels // patch**2, side[0] * patch, side[1] * patch)
    real = sources["real"].shape(args.train_split, folder / "cache")
    return common_shape(synthetic, real, resize=args.resize, flags=(flag, "--real"))


def _count(args: argparse.Namespace, release: Path | None) -> None:
    """Before more than a size of the private images is read."""
    if release is None or args.real_is_public or not Path(args.model).is_dir() or not os.access(release, os.W_OK):
        return
    from ..evaluation.amendments import count_evaluation

    count_evaluation(release)


def _read(
    args: argparse.Namespace,
    sources: "dict[str, Source]",
    shape: "Shape",
    release: Path | None,
    pipeline: "DPImagePipeline | None",
    folder: Path,
) -> "tuple[dict[str, ImageSet], list[str]]":
    """All images, in one shape and with one label set, and what is to be warned of."""
    from ..evaluation.images import copies, validation_split, with_classes_of

    fitting: Any = {"resize": args.resize, "cache_dir": folder / "cache"}
    if release is not None:
        assert pipeline is not None  # both or none
        sources["synthetic"] = _draw(args, release, pipeline, folder)
    synthetic = sources["synthetic"].load(
        "train" if release else args.images_split, shape, limit=args.num_images, **fitting
    )
    train = sources["real"].load(args.train_split, shape, **fitting)
    test = sources["real"].load(args.test_split, shape, **fitting)
    if args.validation_size:
        train, _ = validation_split(train, args.validation_size)
    synthetic, warnings = with_classes_of(synthetic, train)
    if args.resize:
        warnings.append(f"All images were made to fit {shape[2]}x{shape[1]} pixels and {shape[0]} channel(s).")
    for name, real in (("training", train), ("test", test)):
        if number := copies(synthetic, real):
            warnings.append(f"{number} of the synthetic images equal a real {name} image in every pixel.")
    sets = {"synthetic": synthetic, "real training": train, "real test": test}
    if "public" in sources:
        sets["public"] = sources["public"].load("train", shape, **fitting)
    return sets, warnings


def _draw(args: argparse.Namespace, release: Path, pipeline: "DPImagePipeline", folder: Path) -> "Source":
    """Draws as `diffusers-dp sample` does, and goes on where an earlier command was interrupted."""
    from ..evaluation.images import Source
    from ..receipt import RECEIPT_NAME, canonical_json
    from ..verify import receipt_digest

    names = ("num_images", "num_inference_steps", "solver", "guidance_scale", "seed")
    asked = {name: getattr(args, name) for name in names}
    key = canonical_json(asked) + receipt_digest(release / RECEIPT_NAME)
    output = folder / f"synthetic-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    try:
        sample.draw(pipeline, release, argparse.Namespace(**{**vars(args), "output": output}))
    except UsageError as error:
        raise UsageError(str(error).replace("--output ", "--output_dir: ")) from None
    return Source("--model", str(output), facts={"drawn_from": "the release", **asked})


def _measure(
    args: argparse.Namespace, sets: "dict[str, ImageSet]", warnings: list[str], release: Path | None, folder: Path
) -> "Evaluation":
    """All numbers, and both files of the report."""
    import torch

    from ..evaluation.evaluator import Evaluator, Plan
    from ..evaluation.page import build_page
    from ..evaluation.pictures import build_charts, build_neighbours, build_samples
    from ..evaluation.report import Evaluation, release_facts, write_report

    labelled = sets["synthetic"].labels is not None
    args.metrics = args.metrics or [name for name in METRICS if labelled or name != "class_fid"]
    args.extractors = args.extractors or (["pixels", "classifier"] if labelled else ["pixels"])
    args.classifiers = args.classifiers or (["logreg", "cnn"] if labelled else [])
    device = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    plan = Plan(
        args.metrics, args.extractors, args.classifiers, args.seed, args.repetitions, args.inception_weights,
        args.dinov2_model, device,
    )  # fmt: skip
    evaluator = Evaluator(
        plan, folder, sets["synthetic"], sets["real training"], sets["real test"], sets.get("public")
    )
    evaluation = Evaluation(
        not args.real_is_public, {name: getattr(args, name) for name in SETTINGS}, sets,
        release_facts(release or Path(args.images)), warnings=warnings,
    )  # fmt: skip
    evaluator.fill(evaluation)
    charts = build_charts(evaluation, (*evaluator.embedding(plan.extractors[-1]), plan.extractors[-1]))
    neighbours = build_neighbours(evaluation, evaluator) if args.show_private else []
    write_report(evaluation, build_page(evaluation, charts, build_samples(evaluation), neighbours), folder)
    return evaluation
