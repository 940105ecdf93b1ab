# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `diffusers-dp evaluate` compares: images that are drawn or read, in one shape and with one label set."""

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed.worker_pool import WorkerPool
from ..errors import IntegrityError, UsageError
from ..methods.grey_values import parse_range
from ..sampling.drawing import class_names
from ..sampling.shards import Drawer, draw_folder
from .evaluate_flags import num_images_of


if TYPE_CHECKING:
    import numpy as np

    from ..evaluation.images import ImageSet, Shape, Source
    from ..evaluation.training_curve import CurvePoint, KeptState

#: Of a state along the training: enough for a covariance of pixels or of small features; of large ones, as in
#: DPImageBench's training.
CURVE_IMAGES, CURVE_IMAGES_OF_LARGE_FEATURES = 1000, 5000


def sources_of(args: argparse.Namespace) -> "dict[str, Source]":
    from ..evaluation.images import Source

    counted = {"counted": args.real_is_public}
    columns = {"image_column": args.image_column, "label_column": args.label_column, "class_names": args.class_names}
    real = {**columns, **counted, "unit_column": args.unit_column, "key_column": args.key_column}
    sources = {
        "real": Source("--real", args.real, **real),
        "test": Source("--real", args.real, **columns, **counted, split_flag="--test_split"),
    }
    if args.images is not None:
        sources["synthetic"] = Source(
            "--images", args.images, **columns, split_flag="--images_split", counted=True, is_strange=True
        )
    if args.public_images is not None:
        sources["public"] = Source("--public_images", args.public_images, args.public_image_column, counted=True)
    read = {"max_pixels": args.max_image_pixels, "value_range": parse_range(args.value_range, args.window)}
    return {name: replace(source, **read) for name, source in sources.items()}


def judged_folder(args: argparse.Namespace, release: Drawer | None) -> Path:
    """The folder of what is judged, whose receipt fits where it is a release. `--images` on the Hub are fetched.

    Raises:
        UsageError: There is none.
        IntegrityError: `--images` are a release, and not what its receipt says.
    """
    from ..evaluation.images import folder_of
    from ..release.hub import verify_here
    from ..release.loading import release_in

    if release is not None:
        return release.release.folder
    folder = folder_of("--images", args.images)
    problems = verify_here(folder)[1] if release_in(folder).holds_images else []
    if problems:
        raise IntegrityError(f"--images {args.images} is not judged: {' '.join(problems)}")
    return folder


def find_shape(
    args: argparse.Namespace, sources: "dict[str, Source]", release: Drawer | None, cache: Path
) -> "tuple[Shape, str | None]":
    """The shape in which all are compared, and the split of the real test images, if there is one.

    Raises:
        UsageError: The shapes do not fit.
    """
    from ..data.sources import MissingSplit
    from ..evaluation.images import common_shape

    if release is None:
        synthetic, flag = sources["synthetic"].shape(args.images_split, cache), "--images"
    else:
        synthetic, flag = release.release.image_shape, "--model"
    real = sources["real"].shape(args.train_split, cache)
    shape = common_shape(synthetic, real, resize=args.resize, flags=(flag, "--real"))
    split = args.test_split or "test"
    try:
        sources["test"].shape(split, cache)  # before images are drawn, which takes long
    except MissingSplit:
        if args.test_split is not None:
            raise
        return shape, None
    return shape, split


def read_synthetic(args: argparse.Namespace, source: "Source", shape: "Shape", folder: Path) -> "ImageSet":
    """Those of `--images`, or those that were drawn."""
    split = args.images_split if args.model is None else "train"
    return source.load(
        split, shape, limit=num_images_of(args), seed=args.seed, resize=args.resize, cache_dir=folder / "cache"
    )


def read_public(args: argparse.Namespace, source: "Source", shape: "Shape", folder: Path) -> "ImageSet":
    return source.load("train", shape, resize=args.resize, cache_dir=folder / "cache")


def read_real(
    args: argparse.Namespace,
    sources: "dict[str, Source]",
    shape: "Shape",
    test_split: str | None,
    facts: dict[str, Any] | None,
    folder: Path,
) -> "tuple[dict[str, ImageSet], list[str]]":
    """The real training, test and validation images, where there are some, and what is to be warned of.

    Args:
        facts (`dict`, *optional*): What `release_facts` says of the synthetic images.
    """
    from ..evaluation.images import validation_split

    fitting: Any = {"resize": args.resize, "cache_dir": folder / "cache"}
    train = sources["real"].load(args.train_split, shape, **fitting)
    sets, warnings = {"real training": train}, []
    if test_split is not None:
        sets["real test"] = sources["test"].load(test_split, shape, **fitting)
    for name, images in sets.items():
        if images.origin.get("unreadable"):
            warnings.append(
                f"{images.origin['unreadable']} {name} image(s) or labels cannot be read and are left out."
            )
    if args.validation_size:
        if args.selection == "private":
            check_unit(facts, args.unit_column)
            column = args.unit_column or args.key_column
            warnings += check_disjoint(facts, {"images": args.validation_size, "ids": train.ids_are, "column": column})
            print(warnings[-1])  # before anything is spent
        declared = args.num_train_images
        if declared is None and facts is not None and facts["held_out"] is not None:
            declared = facts["num_images"]
        sets["real training"], validation = validation_split(train, args.validation_size, declared)
        if args.selection == "private":
            sets["real validation"] = validation
    if args.resize:
        warnings.append(f"All images were made to fit {shape[2]}x{shape[1]} pixels and {shape[0]} channel(s).")
    return sets, warnings


def match(synthetic: "ImageSet", sets: "dict[str, ImageSet]") -> "tuple[dict[str, ImageSet], list[str]]":
    """All sets, the synthetic images with the real ones' classes, and what is to be warned of."""
    from ..evaluation.images import copies_warning, with_classes_of

    synthetic, warnings = with_classes_of(synthetic, sets["real training"])
    for name in ("training", "test"):
        if f"real {name}" in sets and (warning := copies_warning(synthetic, sets[f"real {name}"], name)):
            warnings.append(warning)
    return {"synthetic": synthetic, **sets}, warnings


def stand_in(release: Drawer, shape: "Shape") -> "ImageSet":
    """No image, with the classes of those that will be drawn."""
    import numpy as np

    from ..evaluation.images import ImageSet

    images = np.empty((0, *shape), np.uint8)
    names = class_names(release.release.pipeline)
    return ImageSet(images) if names is None else ImageSet(images, np.empty(0, np.int64), tuple(names))


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


def draw(drawer: Drawer, folder: Path, pool: WorkerPool) -> "Source":
    """Draws as `diffusers-dp sample` does, and goes on where an earlier command was interrupted."""
    from ..evaluation.images import Source
    from ..files.canonical import canonical_json
    from ..release.receipt import RECEIPT_NAME
    from ..verify import receipt_digest

    asked = drawer.drawing.facts
    key = canonical_json(asked) + receipt_digest(drawer.release.folder / RECEIPT_NAME)
    output = folder / f"synthetic-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    draw_folder(drawer, output, pool)
    return Source("--model", str(output), counted=True, facts={"drawn_from": "the release", **asked})


def curve_points(
    drawer: Drawer, states: "list[KeptState]", extractor: str, shape: "Shape", pool: WorkerPool
) -> "Iterator[CurvePoint]":
    """One after the other, each in the place of the release's weights: the images of the release must have been
    drawn."""
    from ..evaluation.extractors import hash_weights
    from ..evaluation.training_curve import CurvePoint
    from ..runs.kept_states import load_state

    most = CURVE_IMAGES_OF_LARGE_FEATURES if extractor in ("inception", "dinov2") else CURVE_IMAGES
    drawing, unet = (
        replace(drawer.drawing, num_images=min(most, drawer.drawing.num_images)),
        drawer.release.pipeline.unet,
    )
    for state in states:
        load_state(state, unet)
        draw = partial(_images_of, StateImages(replace(drawer, drawing=drawing), state, shape), pool)
        yield CurvePoint(state, hash_weights(unet), drawing.facts, draw)


@dataclass(frozen=True)
class StateImages:
    """Draws images of a state whose weights are in the pipeline, which another process puts there by itself."""

    drawer: Drawer
    state: "KeptState"
    shape: "Shape"

    def __call__(self, indices: range) -> "np.ndarray":
        """uint8, shape `[n, C, H, W]`."""
        import numpy as np

        from ..data.decoding import decode_as_it_is
        from ..evaluation.images import fit

        arrays = [decode_as_it_is(image) for image in self.drawer.images(indices)]
        return np.stack(
            [each if each.shape == self.shape else fit(each, self.shape) for each in arrays if each is not None]
        )

    def __reduce__(self) -> Any:
        return _images_of_state, (self.drawer, self.state, self.shape)


def _images_of_state(drawer: Drawer, state: "KeptState", shape: "Shape") -> StateImages:
    from ..runs.kept_states import load_state

    load_state(state, drawer.release.pipeline.unet)
    return StateImages(drawer, state, shape)


def _images_of(work: StateImages, pool: WorkerPool) -> "np.ndarray":
    import numpy as np

    return np.concatenate(list(pool.map(work, work.drawer.drawing.parts())))
