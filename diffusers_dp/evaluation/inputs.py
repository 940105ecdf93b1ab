# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation compares: images that are drawn or read, in one shape and with one label set."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.records import MissingSplit
from ..distributed.worker_pool import WorkerPool
from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..methods.data_flags import range_of
from ..release.allow_list import kind_of
from ..release.components import WrongModel, read_json
from ..release.hub import verify_here
from ..release.loading import release_in
from ..sampling.drawing import class_names
from ..sampling.shards import PARAMETERS_NAME, Drawer, draw_folder
from ..verify import RECEIPT_NAME, check_guarantee, read_receipt, receipt_digest
from .flags import EvaluationFlags
from .images import ImageSet, Source, common_shape, copies_warning, folder_of, validation_split, with_classes_of
from .report import release_facts


def judged_facts(flags: EvaluationFlags, release: Drawer | None) -> dict[str, Any] | None:
    """What the receipt of what is judged says, where it is a release. `--images` on the Hub are fetched.

    Raises:
        UsageError: There is no such folder, or it holds a model.
        IntegrityError: `--images` are a release, and not what its receipt says; or drawn ones with another receipt.
    """
    folder = folder_of("--images", flags.images or "") if release is None else release.release.folder
    holds_images = release is None and release_in(folder).holds_images
    if release is None and not holds_images and kind_of(folder) is not None:
        raise UsageError(f"--images {flags.images} is a model; give it as --model.")
    problems, facts = verify_here(folder)[1] if holds_images else [], release_facts(folder)
    if release is None and not holds_images and facts is not None:  # drawn by `diffusers-dp sample`
        problems, stated = check_guarantee(read_receipt(folder)), {}
        with suppress(WrongModel):
            stated = read_json(folder / PARAMETERS_NAME)
        if stated.get("receipt_sha256") != facts["receipt_sha256"]:
            problems.append(f"{PARAMETERS_NAME} does not name this {RECEIPT_NAME}.")
    if problems:
        raise IntegrityError(f"--images {flags.images} is not judged: {' '.join(problems)}")
    return facts


class Inputs:
    """The images to compare, read one set at a time.

    Args:
        flags (`EvaluationFlags`): Names of data sets, splits and columns.
        seed (`int`): Seed of a draw of `--num_images`.
        release (`Drawer`, *optional*): Release to draw from, in the place of `--images`.
        facts (`dict`, *optional*): What `release_facts` says of the synthetic images.
        cache (`Path`): Folder for the cache of `datasets`; drawn images are beside it.

    Attributes:
        shape (`tuple[int, int, int]`): Shape in which all are compared.
        test_split (`str`, *optional*): Split of the real test images, if there is one.
        warnings (`list[str]`): Warnings about what was read.

    Raises:
        UsageError: The shapes do not fit.
    """

    def __init__(
        self, flags: EvaluationFlags, seed: int, release: Drawer | None, facts: dict[str, Any] | None, cache: Path
    ):
        self.flags, self.seed, self.release, self.facts, self.cache = flags, seed, release, facts, cache
        self.warnings: list[str] = []
        known = {} if facts is None else facts["trained_on"]
        ends = range_of(flags.value_range, None) or known.get("grey_range")
        columns: Any = {
            "image_column": flags.image_column, "label_column": flags.label_column, "class_names": flags.class_names,
            "value_range": None if ends is None else tuple(ends),
        }  # fmt: skip
        self.real = Source(
            "--real", flags.real, **columns, counted=flags.real_is_public, unit_column=flags.unit_column,
            key_column=flags.key_column, trained_on=known,
        )  # fmt: skip
        self.test = replace(self.real, split_flag="--test_split", unit_column=None, key_column=None)
        self.judged = Source(
            "--images", flags.images, **columns, split_flag="--images", counted=True, is_untrusted=True
        )
        drawn, found = (
            None if release is None else release.release.image_shape,
            self.real.shape(flags.train_split, cache),
        )
        synthetic = drawn or self.judged.shape("train", cache)
        #: Training brought the real images to the shape of the release.
        self.resizes_real = flags.resize or known.get("image_shape") == list(synthetic)
        self.shape = synthetic
        if flags.resize or not self.resizes_real:
            names = ("--images" if drawn is None else "--model", "--real")
            self.shape = common_shape(synthetic, found, resize=flags.resize, flags=names)
        if flags.resize or found != self.shape:
            channels, height, width = self.shape
            self.warnings.append(f"All images were made to fit {width}x{height} pixels and {channels} channel(s).")
        self.test_split: str | None = flags.test_split or "test"
        try:
            self.test.shape(self.test_split, cache)  # before images are drawn, which takes long
        except MissingSplit:
            if flags.test_split is not None:
                raise
            self.test_split = None

    def synthetic(self) -> ImageSet:
        """Reads those of `--images`, or those that were drawn; before, no image with the classes of these."""
        flags, release = self.flags, self.release
        if release is not None and self.judged.name is None:
            names, images = class_names(release.release.pipeline), np.empty((0, *self.shape), np.uint8)
            return ImageSet(images) if names is None else ImageSet(images, np.empty(0, np.int64), tuple(names))
        return self.judged.load(
            "train", self.shape, limit=flags.num_judged, seed=self.seed, cache_dir=self.cache, resize=flags.resize
        )

    def draw(self, pool: WorkerPool) -> None:
        """Draws as `diffusers-dp sample` does, and goes on where an earlier command was interrupted."""
        assert self.release is not None
        asked = self.release.drawing.facts
        key = canonical_json(asked) + receipt_digest(self.release.release.folder / RECEIPT_NAME)
        output = self.cache.parent / f"synthetic-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        draw_folder(self.release, output, pool)
        self.judged = Source("--model", str(output), counted=True, facts={"drawn_from": "the release", **asked})

    def real_sets(self) -> dict[str, ImageSet]:
        """Reads the real training, test and validation images, where there are some."""
        flags = self.flags
        how: Any = {"resize": self.resizes_real, "cache_dir": self.cache}
        sets = {"real training": self.real.load(flags.train_split, self.shape, **how)}
        if self.test_split is not None:
            sets["real test"] = self.test.load(self.test_split, self.shape, **how)
        names = sets["real training"].names
        for name, images in sets.items():
            if images.names and images.names != names:
                raise UsageError(
                    f"The {name} images have the classes {', '.join(images.names)}, the training ones "
                    f"{', '.join(names)}; give these names as --class_names."
                )
            if unreadable := images.origin["unreadable"]:
                self.warnings.append(f"{unreadable} {name} image(s) or labels cannot be read and are left out.")
            if told := images.origin.get("labels"):
                self.warnings.append(f"Labels of the {name} images are {told}, which --train_data_dir reads.")
        if flags.validation_size:
            train, declared = sets["real training"], flags.num_train_images
            if declared is None and self.facts is not None and self.facts["held_out"] is not None:
                declared = self.facts["num_images"]
            sets["real training"], validation = validation_split(train, flags.validation_size, declared)
            if flags.selection == "validation":
                column = flags.unit_column or flags.key_column
                held_out = {"images": flags.validation_size, "ids": train.ids_are, "column": column}
                check_held_out(self.facts, held_out)
                sets["real validation"] = validation
        return sets

    def matched(self, synthetic: ImageSet, sets: dict[str, ImageSet]) -> dict[str, ImageSet]:
        """Returns all sets, the synthetic images with the real ones' classes."""
        if (self.flags.num_images or 0) > len(synthetic):
            self.warnings.append(
                f"--num_images {self.flags.num_images} is more than the {len(synthetic)} images that can be read; all "
                "of these are judged."
            )
        synthetic, warnings = with_classes_of(synthetic, sets["real training"])
        self.warnings += warnings
        for name in ("training", "test"):
            if f"real {name}" in sets and (copies := copies_warning(synthetic, sets[f"real {name}"], name)):
                self.warnings.append(copies)
        return {"synthetic": synthetic, **sets}


def check_held_out(facts: dict[str, Any] | None, held_out: dict[str, Any]) -> None:
    """Checks that the generator was not trained on the validation images, as far as its receipt tells: training leaves
    out the same ones.

    Args:
        facts (`dict`, *optional*): What `release_facts` returned.
        held_out (`dict`): How many images are held out here, and by which ids, as a receipt states it.

    Raises:
        UsageError: Other images were held out, or none.
    """
    if facts is not None and facts["held_out"] != held_out:
        stated = facts["held_out"]
        theirs = "none" if stated is None else f"{stated['images']} by their {stated['column'] or stated['ids']}"
        raise UsageError(
            "--selection validation needs images that the generator was not trained on, and its receipt says that "
            f"training held out {theirs}; give --validation_size, --unit_column and --key_column as in training, or "
            "choose with --selection synthetic."
        )
