# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Drawing from a model, for everybody who does: `diffusers-dp sample`, evaluations, audits, the page, sample pictures.

Drawing is post-processing and costs no privacy. Image i gets its own noise from the seed and i. It does not depend on
interruptions, on the number of processes, or, up to rounding by one grey level, on the batch size. Torch is loaded
only when an image is drawn.

The classes of drawn images: in equal shares, in public shares, or in the noisy shares of a receipt. Nothing here
reads a private image.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..files.untrusted_values import bounded_number
from ..methods.flag import flag
from ..methods.flag_groups import SolverFlags


if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

    from ..distributed.processes import Processes
    from ..pipelines import DPImagePipeline


HMC = "hmc"  # the pipeline's `sampler`
LEAPFROG_STEPS = 3  # the pipeline's default
MOST_STEPS = 10_000
ROWS_WITHOUT_CLASSES = 8  # of a sample grid, with as many columns
CHURN = ("s_churn", "s_min", "s_max", "s_noise")
#: Flags that a reader of drawn images finds where they are not at their default.
TOLD_IF_GIVEN = (*CHURN, "trajectory_length", "mixed_precision", "deformation")


UNIFORM, RELEASED = "uniform", "released"
CLASS_SHARE = "share of the images"  # metric in a receipt's evaluation


def released_balance(receipt: dict[str, Any], class_names: Sequence[str]) -> str:
    """Reads the noisy class shares of the training images, which a run with `--evaluation_reserve` has paid for.

    Args:
        receipt (`dict`): Verified receipt of the release.
        class_names (sequence of `str`): Class names of the model, in order.

    Returns:
        `str`: Share of each class in per cent, comma-separated, in the format of `parse_balance`.

    Raises:
        UsageError: The receipt has no shares, or their sum is not above 0 because of the noise.
    """
    found = [each for each in receipt.get("evaluation", ()) if each["metric"] == CLASS_SHARE]
    shares = {each["protocol"].get("class"): each["value"] for each in found}
    if len(shares) != len(found) or shares.keys() != set(class_names) or not sum(shares.values()) > 0:
        raise UsageError(
            f"--class_balance {RELEASED} needs the noisy shares of a run with --evaluation_reserve, which this "
            f"release does not have; give {UNIFORM}, or a share for each class."
        )
    return ",".join(f"{shares[name]:.4g}" for name in class_names)


def parse_balance(text: str, num_classes: int | None) -> tuple[float, ...] | None:
    """Reads `--class_balance`.

    Args:
        text (`str`): `uniform`, or one share for each class, comma-separated, in any unit: `1,1,2` gives the third
            class half of the images.
        num_classes (`int`, *optional*): Number of classes of the model; `None` without classes.

    Returns:
        `tuple[float, ...]` or `None`: Shares that sum to 1; `None` for equal shares.

    Raises:
        UsageError: The text is not a list of shares, or has not one share for each class.
    """
    if text == UNIFORM:
        return None
    if num_classes is None:
        raise UsageError("--class_balance needs a model with classes; leave it out.")
    try:
        shares = [bounded_number(float(part), 0) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != num_classes or not 0 < sum(shares) < math.inf:
        raise UsageError(
            f"--class_balance '{text}' is not a share for each of {num_classes} classes; give {UNIFORM}, or numbers "
            "like 0.2,0.8."
        )
    return tuple(share / sum(shares) for share in shares)


@lru_cache(maxsize=2)
def balanced_labels(shares: tuple[float, ...], num_images: int) -> "np.ndarray":
    """Assigns class ids, int64 of shape `[num_images]`: image i gets the class that lags most behind its share of the
    first i + 1 images.

    In every prefix the count of each class differs from its share by about one image at most. Prefixes do not depend
    on `num_images`.
    """
    import numpy as np

    labels = np.empty(num_images, dtype=np.int64)
    lag, step = np.zeros(len(shares)), np.asarray(shares)
    for i in range(num_images):
        lag += step
        labels[i] = lag.argmax()
        lag[labels[i]] -= 1
    return labels


@dataclass
class DrawingFlags(SolverFlags):
    """What decides the images of a model besides their number; runs have those of `SolverFlags`."""

    _argument_group_name = "drawing"

    num_inference_steps: int = flag(20, "Steps of the solver.", at_most=MOST_STEPS)
    batch_size: int = flag(250, "Images at a time, up to a shard's.")
    guidance_scale: float = flag(1.0, "Classifier-free guidance; 1 is none.", above=0, at_most=100)
    seed: int = flag(0, "Seed of the images.", at_least=0, at_most=2**63 - 1)
    trajectory_length: int | None = flag(
        None, f"Leapfrog steps of hmc at each noise level; unset: {LEAPFROG_STEPS}.", at_most=MOST_STEPS
    )
    mixed_precision: str = flag(
        "no", "Type in which the model computes, as in Accelerate; fp16 needs a GPU.", choices=("no", "fp16", "bf16")
    )
    deformation: float = flag(
        0.0, "Strength of random turns, scalings, shifts and bends of drawn images; 0: none.", at_least=0, at_most=2
    )


@dataclass
class Drawing(DrawingFlags):
    """
    What is drawn from a model: everything that determines the images besides its weights.

    Args:
        num_images (`int`): Number of images.
        class_balance (`str`): `uniform`, `released`, or a share for each class, comma-separated.
        class_labels (sequence of `int`, *optional*): Class of each image, instead of `class_balance`.
    """

    num_images: int = flag(1, "Images to draw.")
    class_balance: str = UNIFORM
    class_labels: Sequence[int] | None = None

    @classmethod
    def of(cls, flags: Any, **more: Any) -> "Drawing":
        """Reads the flags of a command or of a run, which may have more."""
        return cls(**{name: vars(flags)[name] for name in vars(flags).keys() & cls.__dataclass_fields__} | more)

    def __post_init__(self) -> None:
        if self.solver == HMC and self.trajectory_length is None:
            self.trajectory_length = LEAPFROG_STEPS

    @property
    def facts(self) -> dict[str, Any]:
        """The facts from which a reader can draw the same images in equal shares of the classes."""
        names = ("num_images", "num_inference_steps", "solver", "guidance_scale", "seed")
        given = (name for name in TOLD_IF_GIVEN if getattr(self, name) != getattr(Drawing, name))
        return {name: getattr(self, name) for name in (*names, *given)}

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the pipeline that are the same for all images."""
        how: dict[str, Any] = {"solver": self.solver}
        if self.solver == HMC:
            how = {"sampler": HMC, "trajectory_length": self.trajectory_length}
        elif self.s_churn:
            how |= {name: getattr(self, name) for name in CHURN}
        return {"num_inference_steps": self.num_inference_steps, "guidance_scale": self.guidance_scale, **how}

    def check(self) -> None:
        if self.trajectory_length is not None and self.solver != HMC:
            raise UsageError(f"--trajectory_length has no effect without --solver {HMC}; give it, too.")

    def of_model(self, pipeline: "DPImagePipeline", receipt: dict[str, Any]) -> "Drawing":
        """Returns the drawing with the shares of `--class_balance released`.

        Raises:
            UsageError: This model cannot draw it.
        """
        from diffusers import DDIMScheduler

        drawing, names = self, class_names(pipeline)
        if self.guidance_scale != 1 and names is None:
            raise UsageError("--guidance_scale needs a model with classes; leave it out.")
        if self.guidance_scale != 1 and pipeline.is_one_step:
            raise UsageError(
                "--guidance_scale needs a diffusion model, and this one makes an image in one step; leave it out."
            )
        if self.class_balance == RELEASED and names is not None:
            drawing = replace(self, class_balance=released_balance(receipt, names))
        parse_balance(drawing.class_balance, pipeline.num_classes)
        scheduler, steps = pipeline.scheduler, self.num_inference_steps
        if self.solver != "dpm" and not hasattr(scheduler, "precondition_outputs"):
            raise UsageError(
                f"--solver {self.solver} needs a model with EDM's noise levels, and this one has none; leave it out."
            )
        if isinstance(scheduler, DDIMScheduler) and steps > scheduler.config.num_train_timesteps > 1:
            raise UsageError(
                f"--num_inference_steps is {steps}; this model has {scheduler.config.num_train_timesteps} at most."
            )
        if self.mixed_precision == "fp16" and pipeline.device.type == "cpu":
            raise UsageError("--mixed_precision fp16 needs a GPU; give bf16, or leave it out.")
        return drawing

    def labels_of(self, indices: range, num_classes: int | None) -> list[int] | None:
        """Returns the class ids of the images of these numbers; `None` for a model without classes."""
        if num_classes is None:
            return None
        if self.class_labels is not None:
            return list(self.class_labels[indices.start : indices.stop])
        shares = parse_balance(self.class_balance, num_classes)
        if shares is None:
            return [i % num_classes for i in indices]
        return [int(label) for label in balanced_labels(shares, self.num_images)[indices.start : indices.stop]]

    def parts(self, size: int | None = None) -> list[range]:
        """Splits the numbers of the images into parts of this size; defaults to the batches."""
        return _split(range(self.num_images), size or self.batch_size)


def _split(indices: range, size: int) -> list[range]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def generators(seed: int, indices: range) -> "list[torch.Generator]":
    """Returns a generator for each image, the same on any machine. Torch's CPU generator has 2^32 seeds; consecutive
    images never share one."""
    import numpy as np
    import torch

    first = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [torch.Generator().manual_seed((first + i) % 2**32) for i in indices]


def draw(
    pipeline: "DPImagePipeline", drawing: Drawing, indices: range | None = None, *, bar: Any = None, **more: Any
) -> "list[Image.Image]":
    """Draws images, batch by batch.

    Args:
        pipeline (`DPImagePipeline`): Model.
        drawing (`Drawing`): What is drawn.
        indices (`range`, *optional*): Numbers of the images; defaults to all.
        bar (`tqdm`, *optional*): Progress in images.
        more: Further arguments of the pipeline.
    """
    import torch

    from ..models.denoiser import mixed_precision

    indices = range(drawing.num_images) if indices is None else indices
    dtype = {"no": None, "fp16": torch.float16, "bf16": torch.bfloat16}[drawing.mixed_precision]
    images: list[Any] = []
    for part in _split(indices, drawing.batch_size):
        own = generators(drawing.seed, part)
        with mixed_precision(pipeline.device, dtype):
            pictures = pipeline(
                batch_size=len(part),
                class_labels=drawing.labels_of(part, pipeline.num_classes),
                generator=own,
                **drawing.arguments,
                **more,
            ).images
        if drawing.deformation:
            from ..models.augmentation import deformed
            from ..release.artefacts import picture_of

            moved = deformed(torch.from_numpy(pixels_of(pictures)), drawing.deformation, own)
            pictures = [picture_of(image) for image in moved.numpy()]
        images += pictures
        if bar is not None:
            bar.update(len(part))
    return images


def draw_shared(pipeline: "DPImagePipeline", drawing: Drawing, processes: "Processes", title: str) -> "np.ndarray":
    """Draws all images in several processes, which share the batches, and returns them to each as uint8
    `[n, C, H, W]`."""
    import numpy as np

    with processes.bar(total=drawing.num_images, desc=title, unit="image") as bar:

        def work(part: range) -> "np.ndarray":
            images = draw(pipeline, drawing, part)
            bar.update(min(len(part) * processes.count, drawing.num_images - bar.n))  # the others progress alike
            return pixels_of(images)

        return np.concatenate(processes.share(work, drawing.parts()))


def pixels_of(images: "Sequence[Image.Image]") -> "np.ndarray":
    """Converts pictures of one size and mode to uint8 `[n, C, H, W]`."""
    import numpy as np

    pixels = np.stack([np.asarray(image) for image in images])
    return pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)


def class_names(pipeline: "DPImagePipeline") -> list[str] | None:
    """Returns distinct class names by id, as `datasets` needs them: a name of several classes gets the class id.
    Returns `None` for a model without classes."""
    if pipeline.num_classes is None:
        return None
    id2label = {int(key): str(value) for key, value in (pipeline.config.id2label or {}).items()}
    names = [id2label.get(i, str(i)) for i in range(pipeline.num_classes)]
    counts = Counter(names)
    unique = [name if counts[name] == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    return unique if len(set(unique)) == len(unique) else [str(i) for i in range(len(names))]


def sample_grid(pipeline: "DPImagePipeline", drawing: Drawing, num_per_class: int | None = None) -> "Image.Image":
    """Draws the sample picture of a release: a row for each class with its name; 8 rows of 8 without classes.

    Args:
        pipeline (`DPImagePipeline`): Model in evaluation mode.
        drawing (`Drawing`): Public seed and flags; number, batches and labels follow from the picture.
        num_per_class (`int`, *optional*): Number of columns of a model with classes; defaults to 10.

    Returns:
        `PIL.Image.Image`: Picture of mode L for one channel, otherwise RGB.
    """
    from ..release.artefacts import IMAGES_PER_CLASS, grid_of

    rows, columns, labels = ROWS_WITHOUT_CLASSES, ROWS_WITHOUT_CLASSES, None
    if pipeline.num_classes is not None:
        rows, columns = pipeline.num_classes, num_per_class or IMAGES_PER_CLASS
        labels = [row for row in range(rows) for _ in range(columns)]
    drawing = replace(drawing, num_images=rows * columns, batch_size=columns, class_labels=labels)
    images = draw(pipeline, drawing)
    names = class_names(pipeline) if pipeline.config.id2label else None
    return grid_of([images[part.start : part.stop] for part in drawing.parts()], names or ())
