# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of `diffusers-dp evaluate`, and what they cannot be. Nothing here reads an image."""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..accounting.ledger_file import check_dataset_id
from ..data.decoding import MAX_IMAGE_PIXELS
from ..errors import UsageError
from ..methods.grey_values import parse_range
from ..verify import UNIT
from . import sample


METRICS = ("fid", "kid", "inception_score", "precision_recall", "fld", "class_fid", "complexity")
EXTRACTORS = ("pixels", "classifier", "inception", "dinov2")
CLASSIFIERS = ("logreg", "mlp", "cnn", "wrn", "resnet", "resnext")
SELECTIONS = ("synthetic", "private")
DEFAULT_NUM_IMAGES = 10_000
#: Flags that decide numbers, as the report states them.
SETTINGS = (
    "metrics", "extractors", "classifiers", "repetitions", "ensemble", "classifier_epochs", "cifar_networks",
    "utility_sizes", "reference", "selection", "selection_epsilon", "selection_delta", "model_selection",
    "dp_reference", "training_curve", "num_images", "num_inference_steps", "solver", "trajectory_length",
    "guidance_scale", "train_split", "test_split", "validation_size", "resize", "seed", "real_is_public",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "diffusers-dp evaluate (--model RELEASE | --images DATASET) [--real DATASET] [flags, see --help]"
    judged = parser.add_mutually_exclusive_group(required=True)
    judged.add_argument("--model", metavar="RELEASE", help="Release to draw from: a folder, or a Hub id.")
    judged.add_argument("--images", metavar="DATASET", help="Synthetic images, of `diffusers-dp sample` for instance.")
    parser.add_argument("--images_split", default="train", help="Split of --images.")
    parser.add_argument(
        "--num_images", type=int, help=f"Images to draw (unset: {DEFAULT_NUM_IMAGES}), or to take of --images."
    )
    sample.add_drawing_arguments(parser)
    parser.add_argument("--real", metavar="DATASET", help="Real images: Hub id or folder; unset: the embedded digits.")
    parser.add_argument("--train_split", default="train", help="Split of --real that fidelity is measured against.")
    parser.add_argument(
        "--test_split", help="Split of --real that classifiers are tested on; unset: test, if there is one."
    )
    parser.add_argument(
        "--validation_size", type=int, default=0, help="Images of --train_split to leave out, as in training."
    )
    parser.add_argument(
        "--num_train_images", type=int, help="N, as declared for training; unset: as the receipt says, or the rest."
    )
    parser.add_argument("--key_column", help="As in training: images are left out by their key.")
    parser.add_argument("--image_column", default="image", help="Column of the images, in --real and --images.")
    parser.add_argument("--label_column", help="Column of the classes, in --real and --images; unset: 'label'.")
    parser.add_argument(
        "--unit_column", help="Column of --real that tells whose an image is, as in training; unset: each is a unit."
    )
    parser.add_argument("--class_names", help="The label set, comma-separated; unset: that of the ClassLabel.")
    parser.add_argument("--public_images", metavar="DATASET", help="Public images: is the model closer to them?")
    parser.add_argument("--public_image_column", default="image", help="Column of --public_images, split train.")
    parser.add_argument(
        "--max_image_pixels", type=int, default=MAX_IMAGE_PIXELS, help="Images of more are not read, as in training."
    )
    parser.add_argument("--value_range", help="Declared black and white of images with more than 8 bits: 0,4095.")
    parser.add_argument("--window", help="The same as center,width: 40,400.")
    parser.add_argument("--resize", action="store_true", help="Make images of other sizes and channels fit.")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, help="Of the images; unset: all that apply.")
    parser.add_argument(
        "--extractors", nargs="+", choices=EXTRACTORS, help="Feature spaces; unset: pixels classifier, if they apply."
    )
    parser.add_argument("--inception_weights", type=Path, metavar="FILE", help="Unset: downloaded.")
    parser.add_argument("--dinov2_model", default="facebook/dinov2-large", help="Folder, or Hub id.")
    _add_utility_arguments(parser)
    parser.add_argument(
        "--training_curve", action="store_true", help="Fréchet distance of each state that the run of --model kept."
    )
    parser.add_argument("--real_is_public", action="store_true", help="The real images are public: nothing is marked.")
    parser.add_argument("--show_private", action="store_true", help="Show single real images, next to synthetic ones.")
    parser.add_argument("--publish_metrics", action="store_true", help="Put the numbers into the card of --model.")
    parser.add_argument("--output_dir", type=Path, help="Unset: the folder that holds --model, or runs/evaluation.")


def _add_utility_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--classifiers", nargs="+", choices=CLASSIFIERS, help="Of utility; unset: logreg cnn, if there are labels."
    )
    parser.add_argument("--repetitions", type=int, default=1, help="Seeds of each classifier.")
    parser.add_argument("--ensemble", type=int, default=1, help="Classifiers a seed, averaged.")
    parser.add_argument("--classifier_epochs", type=int, help="Unset: the published number.")
    parser.add_argument(
        "--cifar_networks",
        action="store_true",
        help="wrn, resnet and resnext as published for CIFAR-10 and CIFAR-100.",
    )
    parser.add_argument(
        "--utility_sizes", type=int, nargs="+", metavar="N", help="Train on N images, too; unset: a tenth, a third."
    )
    parser.add_argument(
        "--selection",
        choices=SELECTIONS,
        default="synthetic",
        help="Images that choose a classifier's epoch; private: real ones.",
    )
    parser.add_argument("--selection_epsilon", type=float, help="Budget of that choice.")
    parser.add_argument("--selection_delta", type=float, help="Unset: 1 / (n ln n) of n validation images.")
    parser.add_argument("--dataset_id", help="Name of the data set of --real, as in training: one ledger counts both.")
    parser.add_argument(
        "--ledger_dir", type=Path, metavar="DIR", help="Private folder of that ledger, as in training."
    )
    parser.add_argument("--model_selection", action="store_true", help="Does a ranking of models hold on real images?")
    parser.add_argument("--reference", action="store_true", help="Train the classifiers on real images as well.")
    parser.add_argument(
        "--dp_reference",
        action="store_true",
        help="Train a classifier on real images with DP-SGD, at the release's epsilon.",
    )


def check(args: argparse.Namespace) -> None:
    """Refuses what cannot be, whatever the images are.

    Raises:
        UsageError: One sentence that names the flag and the remedy.
    """
    for name in ("num_images", "max_image_pixels", "repetitions", "ensemble", "classifier_epochs"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}; give an integer of at least 1.")
    if min(args.utility_sizes or [2]) < 2:
        raise UsageError(f"--utility_sizes holds {min(args.utility_sizes)}; give integers of at least 2.")
    parse_range(args.value_range, args.window)
    if args.validation_size < 0:
        raise UsageError(f"--validation_size is {args.validation_size}; give an integer of at least 0.")
    if args.cifar_networks and not {"wrn", "resnet", "resnext"} & set(args.classifiers or []):
        raise UsageError("--cifar_networks changes wrn, resnet and resnext alone; name one with --classifiers.")
    _check_selection(args)
    for name, what in (
        ("publish_metrics", "whose card can be written"),
        ("training_curve", "beside what its run kept"),
    ):
        if getattr(args, name) and args.model is None:
            raise UsageError(f"--{name} needs a release {what}; give --model.")
        if getattr(args, name) and not Path(args.model).is_dir():
            raise UsageError(f"--{name} needs a release {what}, and --model {args.model} is no folder here.")
    if args.model is not None:
        check_utility_sizes(args.utility_sizes, num_images_of(args) or 1)
    sample.drawing_of(args, num_images_of(args) or 1)


def num_images_of(args: argparse.Namespace) -> int | None:
    """How many images are drawn of `--model`, or taken of `--images`; `None`: all of these."""
    unset = None if args.model is None else DEFAULT_NUM_IMAGES
    return args.num_images or unset


def selection_delta_of(args: argparse.Namespace) -> float | None:
    """`--selection_delta` with its default filled in; `None` without a private choice."""
    size = args.validation_size
    if args.selection != "private" or args.selection_delta is not None:
        return args.selection_delta
    return 1 / (size * math.log(size))


def settings_of(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """`SETTINGS` as the report states them, with what was `found` in the place of what was unset."""
    filled = {"num_images": num_images_of(args), "selection_delta": selection_delta_of(args), **found}
    return {name: filled.get(name, getattr(args, name)) for name in SETTINGS}


def _check_selection(args: argparse.Namespace) -> None:
    if args.selection != "private":
        for name in ("selection_epsilon", "selection_delta", "dataset_id", "ledger_dir"):
            if getattr(args, name) is not None:
                raise UsageError(
                    f"--{name} is about the budget of a private choice; give --selection private as well."
                )
        return
    if args.selection_epsilon is None:
        raise UsageError("--selection private spends a budget of the validation images; give --selection_epsilon.")
    if args.validation_size < 2:
        raise UsageError(
            "--selection private needs real images that the generator was not trained on; give --validation_size, as "
            "in training."
        )
    if not 1e-3 <= args.selection_epsilon <= 1e3:
        raise UsageError(f"--selection_epsilon is {args.selection_epsilon}; give a number from 0.001 to 1000.")
    for name in ("dataset_id", "ledger_dir"):
        if getattr(args, name) is None:
            raise UsageError(
                "--selection private needs --dataset_id and --ledger_dir, those of training with these images: else "
                f"nobody adds up what they cost together; give --{name}."
            )
    check_dataset_id(args.dataset_id)
    unit = args.unit_column
    if unit is not None and (unit == "image" or not re.fullmatch(UNIT, unit, re.ASCII)):
        raise UsageError(f"--unit_column '{unit}' cannot name a unit; give the one of training, such as patient_id.")
    if args.selection_delta is not None and not 0 < args.selection_delta < 1:
        raise UsageError(
            f"--selection_delta is {args.selection_delta:g}; give a number between 0 and 1, both excluded."
        )
    if args.classifiers and set(args.classifiers) == {"logreg"}:
        raise UsageError(
            "--classifiers logreg has no epoch to choose; add one that has, such as cnn, or leave out --selection "
            "private."
        )


def validation_ledger(args: argparse.Namespace) -> Path:
    """That of the data set, which counts its trainings too."""
    return Path(args.ledger_dir).expanduser() / f"{args.dataset_id}.jsonl"


def check_utility_sizes(sizes: Sequence[int] | None, num_images: int) -> None:
    """Raises `UsageError` where a classifier is to be trained on more images than there are."""
    if sizes and max(sizes) > num_images:
        raise UsageError(
            f"--utility_sizes asks for {max(sizes)} of {num_images} synthetic images; lower it, or give more images."
        )
