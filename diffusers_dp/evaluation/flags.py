# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of `diffusers-dp evaluate`, and what they cannot be. Nothing here reads an image, or loads torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..methods.data_flags import CLASSES, RANGE
from ..methods.flag import flag
from ..queries.efficientnet import EFFICIENTNET
from .analyses import METRICS


EXTRACTORS = ("pixels", "classifier", "inception", EFFICIENTNET)
CLASSIFIERS = ("logreg", "mlp", "cnn", "wrn", "resnet", "resnext")
ON_HARD_LABELS = ("logreg", "mlp")  # alone; the others also learn the probabilities of a judge
DEFAULT_NUM_IMAGES = 10_000
#: What is measured where flags do not say: all that applies, or what `--quick` has the time for.
ALL = {"metrics": METRICS, "extractors": ("pixels", "classifier"), "classifiers": ("logreg", "cnn")}
QUICK = {"metrics": ("fid",), "extractors": ("pixels",), "classifiers": ("cnn",)}
QUICK_IMAGES, QUICK_EPOCHS = 2_000, 20


@dataclass
class JudgedFlags:
    """What is judged, and where the report goes."""

    _argument_group_name = "synthetic images and report"

    model: str | None = flag(None, "Release to draw from: a folder, or a Hub id.", metavar="RELEASE")
    images: str | None = flag(
        None, "Synthetic images, as of `diffusers-dp sample`, maybe with soft labels.", metavar="DATASET"
    )
    num_images: int | None = flag(None, f"Images to draw (unset: {DEFAULT_NUM_IMAGES}), or to take of --images.")
    output_dir: Path | None = flag(None, "Unset: the folder that holds --model, or runs/evaluation.", metavar="DIR")


@dataclass
class RealFlags:
    """What it is compared with."""

    _argument_group_name = "real images"

    real: str | None = flag(None, "Real images: Hub id or folder; unset: the embedded digits.", metavar="DATASET")
    train_split: str = flag("train", "Split of --real that fidelity is measured against.")
    test_split: str | None = flag(
        None, "Split of --real that classifiers are tested on; unset: test, if there is one."
    )
    validation_size: int = flag(0, "Images of --train_split to leave out, as in training.", at_least=0)
    num_train_images: int | None = flag(
        None, "N, as declared for training; unset: as the receipt says, or the rest.", needs=("validation_size",)
    )
    key_column: str | None = flag(None, "As in training: images are left out by their key.")
    image_column: str | None = flag(
        None, "Column of the images, in --real and --images; unset: as in training, or 'image'."
    )
    label_column: str | None = flag(
        None, "Column of the classes, in --real and --images; unset: as in training, or 'label'."
    )
    unit_column: str | None = flag(
        None, "Column of --real that tells whose an image is, as in training; unset: each is a unit."
    )
    class_names: str | None = flag(
        None, "The label set, comma-separated; unset: that of the receipt, or of the ClassLabel.", **CLASSES
    )
    value_range: str | None = flag(
        None, "Declared black and white of images with more than 8 bits: 0,4095; unset: as in training.", **RANGE
    )
    resize: bool = flag(False, "Make images of other sizes and channels fit.")
    real_is_public: bool = flag(False, "The real images are public: nothing is marked.")


@dataclass
class MeasureFlags:
    """What is measured."""

    _argument_group_name = "numbers"

    quick: bool = flag(
        False, f"A verdict within a minute: one classifier and one distance, of at most {QUICK_IMAGES:,} images."
    )
    metrics: Sequence[str] | None = flag(None, "Of the images; unset: all that apply.", choices=METRICS)
    extractors: Sequence[str] | None = flag(
        None, "Feature spaces; unset: pixels classifier, if they apply.", choices=EXTRACTORS
    )
    inception_weights: Path | None = flag(
        None, "Network of the published tables, pytorch-fid's .pth; unset: StyleGAN2-ADA's, of torch's downloads.",
        metavar="FILE",
    )  # fmt: skip
    classifiers: Sequence[str] | None = flag(
        None, "Of utility; unset: logreg cnn, if there are labels.", choices=CLASSIFIERS
    )
    repetitions: int = flag(1, "Seeds of each classifier.")
    ensemble: int = flag(1, "Classifiers a seed, averaged.")
    classifier_epochs: int | None = flag(None, "Unset: the published number.")
    cifar_networks: bool = flag(False, "wrn, resnet and resnext as published for CIFAR-10 and CIFAR-100.")
    utility_sizes: Sequence[int] | None = flag(
        None, "Train on N images, too; unset: a tenth, a third.", metavar="N", at_least=2
    )
    reference: bool = flag(False, "Train the classifiers on real images as well.")
    selection: str = flag(
        "synthetic", "Images that choose a classifier's epoch; validation: the real ones of --validation_size.",
        choices=("synthetic", "validation"),
    )  # fmt: skip


@dataclass
class EvaluationFlags(JudgedFlags, RealFlags, MeasureFlags):
    """All flags but those of drawing."""

    def __post_init__(self) -> None:
        if self.quick:
            self.classifier_epochs = self.classifier_epochs or QUICK_EPOCHS
            self.reference = True

    @property
    def num_judged(self) -> int | None:
        """Number of images that are drawn from `--model`, or taken of `--images`; `None`: all of these."""
        return self.num_images or (QUICK_IMAGES if self.quick else None if self.model is None else DEFAULT_NUM_IMAGES)

    def check(self) -> None:
        """Refuses what cannot be, whatever the images are.

        Raises:
            UsageError: One sentence that names the flag and the remedy.
        """
        if (self.model is None) == (self.images is None):
            raise UsageError("--model and --images exclude each other, and one is needed; give one of them.")
        if self.cifar_networks and not {"wrn", "resnet", "resnext"} & set(self.classifiers or []):
            raise UsageError("--cifar_networks changes wrn, resnet and resnext alone; name one with --classifiers.")
        if self.inception_weights is not None and "inception" not in (self.extractors or ()):
            raise UsageError("--inception_weights is the network of --extractors inception; name it, or leave it out.")
        if self.selection == "validation" and not self.validation_size:
            raise UsageError(
                "--selection validation takes the real images that --validation_size leaves out; give it, as in "
                "training."
            )
