# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Orders, drawn images and previews. Drawing is post-processing and costs no privacy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..commands.app import Limits
from ..errors import UsageError
from ..release.loading import AnyRelease, ModelRelease
from ..sampling.drawing import Drawing


if TYPE_CHECKING:
    from PIL import Image

SOLVERS = {"dpm": "DPM-Solver++ (fast)", "heun": "Heun (twice the work per step)"}
LONGEST_SHOWN = 100  # letters of a class in a message
PREVIEWS = 12  # maximum number of previews
LARGEST_SEED = 2**53  # largest integer that a page can represent exactly


@dataclass(frozen=True)
class Order:
    """A visitor's order.

    Args:
        classes (tuple of `str`): Class names, which alternate; empty: all classes.
        count (`int`): Number of images.
        seed (`int`): Seed; the noise of image i depends on the seed and i, as in `diffusers-dp sample`.
        steps (`int`): Number of solver steps.
        solver (`str`): `dpm` or `heun`.
    """

    classes: tuple[str, ...]
    count: int
    seed: int
    steps: int
    solver: str

    def drawing(self, labels: Sequence[int] | None) -> Drawing:
        """Returns what is drawn, in one batch."""
        return Drawing(self.count, self.count, self.steps, self.solver, seed=self.seed, labels=labels)


@dataclass(frozen=True)
class Drawn:
    """Drawn images, with the information needed to draw them again or to publish them.

    Args:
        released (`AnyRelease`): Release.
        order (`Order`): Order of the visitor.
        labels (tuple of `int`, *optional*): Class id of each image; `None` for a model without classes.
        images (tuple of `bytes`): PNG files.
    """

    released: AnyRelease
    order: Order
    labels: tuple[int, ...] | None
    images: tuple[bytes, ...]


@dataclass(frozen=True)
class Preview:
    """Progress of a drawing: steps done, and all its images on one sheet."""

    done: int
    total: int
    sheet: bytes


def read_order(values: Sequence[Any], limits: Limits) -> Order:
    """Checks the values from the page, because a visitor can edit the page.

    Args:
        values (sequence): Classes, count, seed, steps and solver.
        limits (`Limits`): Upper limits.

    Raises:
        UsageError: A value is out of range; the message names the field and its range.
    """
    classes, count, seed, steps, solver = values
    if classes is not None and not (isinstance(classes, list | tuple) and all(isinstance(n, str) for n in classes)):
        raise UsageError("The classes have to be a list of names.")
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise UsageError(f"The solver has to be one of {', '.join(SOLVERS)}.")
    return Order(
        tuple(classes or ()),
        _whole("The number of images", count, 1, limits.max_images),
        _whole("The seed", seed, 0, LARGEST_SEED),
        _whole("The number of steps", steps, 1, limits.max_steps),
        solver,
    )


def _whole(what: str, value: Any, least: int, most: int) -> int:
    try:
        whole = int(value)
        exact = whole == float(value)
    except (TypeError, ValueError, OverflowError):
        whole, exact = 0, False
    if not exact or not least <= whole <= most:
        raise UsageError(f"{what} has to be a whole number from {least} to {most:,}.")
    return whole


def labels_of(order: Order, released: AnyRelease) -> tuple[int, ...] | None:
    """Returns a class id for each image; the chosen classes alternate.

    Raises:
        UsageError: The model has no such class.
    """
    names = released.class_names
    if names is None:
        if order.classes:
            raise UsageError(f"'{released.name}' has no classes: choose none.")
        return None
    unknown = [name for name in order.classes if name not in names]
    if unknown:
        shown = ", ".join(name[:LONGEST_SHOWN] for name in names[:10]) + (", ..." if len(names) > 10 else "")
        raise UsageError(f"'{unknown[0][:LONGEST_SHOWN]}' is no class of '{released.name}': choose from {shown}.")
    chosen = [names.index(name) for name in order.classes] or list(range(len(names)))
    return tuple(chosen[i % len(chosen)] for i in range(order.count))


def preview_sheet(release: ModelRelease, step: int, latents: Any) -> "Image.Image":
    """Draws all images after a step side by side, with noise scaled into the range of pixels.

    Args:
        release (`ModelRelease`): Release whose scheduler is at this step.
        step (`int`): Index of the step, from 0.
        latents (`torch.Tensor` of shape `[B, C, H, W]`): Images with noise of standard deviation `sigmas[step + 1]`,
            or of variance at most 1 if the scheduler has no sigmas.
    """
    sigmas = getattr(release.pipeline.scheduler, "sigmas", None)
    level = 0.0 if sigmas is None else float(sigmas[step + 1])
    images = release.decode(latents.float() / (1 + level))
    pixels = ((images / 2 + 0.5).clamp(0, 1) * 255).round().byte().cpu().permute(0, 2, 3, 1).numpy()
    return sheet_of(pixels)


def sheet_of(pixels: Any) -> "Image.Image":
    """Arranges images of shape `[B, H, W, C]` in a nearly square sheet."""
    import numpy as np
    from PIL import Image

    count, height, width, channels = pixels.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.full((rows * height, columns * width, channels), 255, dtype=np.uint8)
    for i, image in enumerate(pixels):
        top, left = i // columns * height, i % columns * width
        sheet[top : top + height, left : left + width] = image
    return Image.fromarray(sheet[..., 0] if channels == 1 else sheet)


def names_of(drawn: Drawn) -> Sequence[str]:
    """Returns the class name of each image; empty strings for a model without classes."""
    if drawn.labels is None or drawn.released.class_names is None:
        return [""] * len(drawn.images)
    return [drawn.released.class_names[label] for label in drawn.labels]
