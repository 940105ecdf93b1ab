# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation compares: images that are drawn or read, in one shape and with one label set."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.source import MissingSplit
from ..distributed.worker_pool import WorkerPool
from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..methods.grey_values import parse_range
from ..release.hub import verify_here
from ..release.loading import release_in
from ..sampling.drawing import class_names
from ..sampling.shards import Drawer, draw_folder
from ..verify import receipt_digest
from ..words import RECEIPT_NAME
from .flags import EvaluationFlags
from .images import (
    ImageSet,
    Source,
    common_shape,
    copies_warning,
    folder_of,
    validation_split,
    with_classes_of,
)  # fmt: skip
from .report import release_facts


def judged_facts(flags: EvaluationFlags, release: Drawer | None) -> dict[str, Any] | None:
    """What the receipt of what is judged says, where it is a release. `--images` on the Hub are fetched.

    Raises:
        UsageError: There is no such folder, or `--dp_reference` cannot be compared with the release.
        IntegrityError: `--images` are a release, and not what its receipt says.
    """
    folder = folder_of("--images", flags.images or "") if release is None else release.release.folder
    problems = verify_here(folder)[1] if release is None and release_in(folder).holds_images else []
    if problems:
        raise IntegrityError(f"--images {flags.images} is not judged: {' '.join(problems)}")
    facts = release_facts(folder)
    if flags.dp_reference and facts is None:
        raise UsageError(
            "--dp_reference needs the epsilon of a release; give --model, or --images of `diffusers-dp sample`."
        )
    if flags.dp_reference and facts is not None and facts["unit_of_privacy"] != "image":
        raise UsageError(
            f"--dp_reference protects single images, and the release {facts['unit_of_privacy']} by "
            f"{facts['unit_of_privacy']}; leave it out."
        )
    return facts


class Inputs:
    """The images to compare, read one set at a time.

    Args:
        flags (`EvaluationFlags`): Names of data sets, splits and columns.
        seed (`int`): Seed of a draw of `--num_images`.
        release (`Drawer`, *optional*): Release to draw from, in the place of `--images`.
        facts (`dict`, *optional*): What `release_facts` says of the synthetic images.
        cache (`Path`): Folder for the cache of `datasets`.

    Attributes:
        shape (`tuple[int, int, int]`): Shape in which all are compared.
        test_split (`str`, *optional*): Split of the real test images, if there is one.

    Raises:
        UsageError: The shapes do not fit.
    """

    def __init__(
        self,
        flags: EvaluationFlags,
        seed: int,
        release: Drawer | None,
        facts: dict[str, Any] | None,
        cache: Path,
    ):
        self.flags, self.seed, self.release, self.facts, self.cache = flags, seed, release, facts, cache
        known = {} if facts is None else facts["trained_on"]
        ends = parse_range(flags.value_range, flags.window) or known.get("grey_range")
        columns: Any = {
            "image_column": flags.image_column, "label_column": flags.label_column, "class_names": flags.class_names,
            "max_pixels": flags.max_image_pixels, "value_range": None if ends is None else tuple(ends),
        }  # fmt: skip
        real = Source(
            "--real", flags.real, **columns, counted=flags.real_is_public, unit_column=flags.unit_column,
            key_column=flags.key_column, trained_on=known,
        )  # fmt: skip
        test = replace(real, split_flag="--test_split", unit_column=None, key_column=None)
        self.sources = {"real": real, "test": test}
        if flags.images is not None:
            self.sources["synthetic"] = Source(
                "--images", flags.images, **columns, split_flag="--images", counted=True, is_untrusted=True
            )
        if release is None:
            synthetic, flag = self.sources["synthetic"].shape("train", cache), "--images"
        else:
            synthetic, flag = release.release.image_shape, "--model"
        found = real.shape(flags.train_split, cache)
        #: Training brought the real images to the shape of the release.
        self.resizes_real = flags.resize or known.get("image_shape") == list(synthetic)
        self.shape = (
            synthetic
            if self.resizes_real and not flags.resize
            else common_shape(synthetic, found, resize=flags.resize, flags=(flag, "--real"))
        )
        self.fits = self.resizes_real and found != self.shape
        self.test_split: str | None = flags.test_split or "test"
        try:
            test.shape(self.test_split, cache)  # before images are drawn, which takes long
        except MissingSplit:
            if flags.test_split is not None:
                raise
            self.test_split = None

    def load(self, name: str, split: str = "train", limit: int | None = None) -> ImageSet:
        """Reads a source in the common shape."""
        return self.sources[name].load(
            split,
            self.shape,
            limit=limit,
            seed=self.seed,
            cache_dir=self.cache,
            resize=self.resizes_real if name in ("real", "test") else self.flags.resize,
        )

    def synthetic(self) -> ImageSet:
        """Reads those of `--images`, or those that were drawn."""
        return self.load("synthetic", limit=self.flags.num_judged)

    def stand_in(self) -> ImageSet:
        """No image, with the classes of those that will be drawn."""
        assert self.release is not None
        images = np.empty((0, *self.shape), np.uint8)
        names = class_names(self.release.release.pipeline)
        return ImageSet(images) if names is None else ImageSet(images, np.empty(0, np.int64), tuple(names))

    def real(self) -> tuple[dict[str, ImageSet], list[str]]:
        """Reads the real training, test and validation images, where there are some; returns warnings, too."""
        flags, facts = self.flags, self.facts
        train = self.load("real", flags.train_split)
        sets, warnings = {"real training": train}, []
        if self.test_split is not None:
            sets["real test"] = self.load("test", self.test_split)
        for name, images in sets.items():
            if images.origin.get("unreadable"):
                warnings.append(
                    f"{images.origin['unreadable']} {name} image(s) or labels cannot be read and are left out."
                )
        if flags.validation_size:
            if flags.selection == "private":
                check_unit(facts, flags.unit_column)
                column = flags.unit_column or flags.key_column
                held_out = {"images": flags.validation_size, "ids": train.ids_are, "column": column}
                warnings += check_disjoint(facts, held_out)
                print(warnings[-1])  # before anything is spent
            declared = flags.num_train_images
            if declared is None and facts is not None and facts["held_out"] is not None:
                declared = facts["num_images"]
            sets["real training"], validation = validation_split(train, flags.validation_size, declared)
            if flags.selection == "private":
                sets["real validation"] = validation
        if flags.resize or self.fits:
            channels, height, width = self.shape
            warnings.append(f"All images were made to fit {width}x{height} pixels and {channels} channel(s).")
        return sets, warnings


def matched(synthetic: ImageSet, sets: dict[str, ImageSet]) -> tuple[dict[str, ImageSet], list[str]]:
    """Returns all sets, the synthetic images with the real ones' classes, and warnings."""
    synthetic, warnings = with_classes_of(synthetic, sets["real training"])
    for name in ("training", "test"):
        if f"real {name}" in sets and (warning := copies_warning(synthetic, sets[f"real {name}"], name)):
            warnings.append(warning)
    return {"synthetic": synthetic, **sets}, warnings


def check_unit(facts: dict[str, Any] | None, unit_column: str | None) -> None:
    """Raises `UsageError` where the release protects another unit than the private choice would.

    Args:
        facts (`dict`, *optional*): What `release_facts` returned.
    """
    unit = unit_column or "image"
    if facts is not None and facts["unit_of_privacy"] != unit:
        theirs = facts["unit_of_privacy"]
        remedy = "leave --unit_column out" if theirs == "image" else f"give --unit_column {theirs}"
        raise UsageError(
            f"--selection private would protect one {unit}, and the release protects one {theirs}: these do not add "
            f"up; {remedy}."
        )


def check_disjoint(facts: dict[str, Any] | None, held_out: dict[str, Any]) -> list[str]:
    """Checks that the generator was not trained on the validation images, as far as its receipt tells: training leaves
    out the same ones.

    Args:
        facts (`dict`, *optional*): What `release_facts` returned.
        held_out (`dict`): How many images are held out here, and by which ids, as a receipt states it.

    Returns:
        `list[str]`: What a reader has to know.

    Raises:
        UsageError: Other images were held out, or none.
    """
    number = held_out["images"]
    if facts is None:
        return [
            f"No receipt tells whether the generator was trained without the {number} validation images; if not, its "
            "epsilon and that of the private choice add up for people in them."
        ]
    if facts["held_out"] != held_out:
        stated = facts["held_out"]
        theirs = "none" if stated is None else f"{stated['images']} by their {stated['column'] or stated['ids']}"
        raise UsageError(
            "--selection private needs validation images that the generator was not trained on, and its receipt says "
            f"that training held out {theirs}; give --validation_size, --unit_column and --key_column as in training, "
            "or choose with --selection synthetic."
        )
    return [
        f"The receipt says that training held out the same {number} images; that it was this data set is the word of "
        "whoever ran this evaluation."
    ]


def draw_for(drawer: Drawer, folder: Path, pool: WorkerPool) -> Source:
    """Draws as `diffusers-dp sample` does, and goes on where an earlier command was interrupted."""
    asked = drawer.drawing.facts
    key = canonical_json(asked) + receipt_digest(drawer.release.folder / RECEIPT_NAME)
    output = folder / f"synthetic-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    draw_folder(drawer, output, pool)
    return Source("--model", str(output), counted=True, facts={"drawn_from": "the release", **asked})
