# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a visitor asks to be drawn, and what comes of it. Drawing is post-processing and costs no privacy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..commands.app import Limits
from ..errors import UsageError
from ..release.loading import AnyRelease
from ..sampling.drawing import Drawing
from .limits import check_choice, check_typed


SOLVERS = {"dpm": "DPM-Solver++", "heun": "Heun"}
CLASSES_SHOWN, LEAST_SHOWN = 3, 0.01  # of what a judge says of an image
LONGEST_SHOWN = 100  # letters of a class in a message
LARGEST_SEED = 2**53  # largest integer that a page can represent exactly


@dataclass(frozen=True)
class Step:
    """Progress of a drawing."""

    done: int
    total: int


@dataclass(frozen=True)
class Drawn:
    """Drawn images, with the information needed to draw them again or to publish them.

    Args:
        released (`AnyRelease`): Release.
        drawing (`Drawing`): What was drawn. Image i of a seed is that of `diffusers-dp sample`.
        images (tuple of `bytes`): PNG files.
        soft_labels (`np.ndarray` of float32, shape `[n, classes]`, *optional*): What a judge in the release says.
    """

    released: AnyRelease
    drawing: Drawing
    images: tuple[bytes, ...]
    soft_labels: np.ndarray | None = None

    @property
    def names(self) -> Sequence[str]:
        """Class name of each image; empty strings for a model without classes."""
        names, labels = self.released.class_names, self.drawing.class_labels
        return [""] * len(self.images) if names is None or labels is None else [names[label] for label in labels]

    @property
    def opinions(self) -> list[list[str]]:
        """The most probable classes of each image, in words; empty lists without a judge."""
        names = self.released.class_names
        if names is None or self.soft_labels is None:
            return [[]] * len(self.images)
        best = [(row, np.argsort(-row, kind="stable")[:CLASSES_SHOWN]) for row in self.soft_labels]
        return [[f"{names[each]}: {row[each]:.0%}" for each in most if row[each] >= LEAST_SHOWN] for row, most in best]


def read_order(released: AnyRelease, values: Sequence[Any], limits: Limits) -> Drawing:
    """Checks the values from the page, because a visitor can edit the page.

    Args:
        released (`AnyRelease`): Release to draw from.
        values (sequence): Classes, which take turns (none: all), count, seed, steps and solver.
        limits (`Limits`): Upper limits.

    Raises:
        UsageError: A value is out of range; the message names the field and its range.
    """
    classes, count, seed, steps, solver = values
    if isinstance(count, int) and count > limits.max_images:
        raise UsageError(
            f"This page shows at most {limits.max_images:,} images at a time: ask for fewer, or draw more on your own "
            "machine with diffusers-dp sample."
        )
    check_typed({
        "The number of images": (count, 1, limits.max_images), "The seed": (seed, 0, LARGEST_SEED),
        "The number of steps": (steps, 1, limits.max_steps),
    })  # fmt: skip
    check_choice("The solver", solver, SOLVERS)
    labels = _labels(released, classes or [], count)
    return Drawing(
        num_images=count, batch_size=count, num_inference_steps=steps, solver=solver, seed=seed, class_labels=labels
    )


def _labels(released: AnyRelease, classes: Any, count: int) -> tuple[int, ...] | None:
    """Returns a class id for each image; `None` for a model without classes."""
    names = released.class_names
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UsageError("The classes have to be a list of names.")
    if names is None:
        if classes:
            raise UsageError("This release has no classes: choose none.")
        return None
    unknown = [name for name in classes if name not in names]
    if unknown:
        shown = ", ".join(name[:LONGEST_SHOWN] for name in names[:10]) + (", ..." if len(names) > 10 else "")
        raise UsageError(f"'{unknown[0][:LONGEST_SHOWN]}' is no class of this release: choose from {shown}.")
    chosen = [names.index(name) for name in classes] or list(range(len(names)))
    return tuple(chosen[i % len(chosen)] for i in range(count))
