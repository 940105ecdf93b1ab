# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which epoch of a classifier counts: chosen on synthetic images, for nothing, or privately on real validation images.

The published tables choose on real validation images without noise (DPImageBench, Report Noisy Max in the text alone), so that what
they report was tuned on sensitive images at no charge. Here the private way has a ledger of its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import UsageError
from ..ledger import PrivacyLedger
from ..randomness import PrivateGenerator
from ..sensitive import SensitiveImages
from .classifiers import labels_of
from .images import ImageSet


# Of 60,000 synthetic images, in the order of a fixed shuffle, 55,000 train and the rest validates.
TRAIN_SHARE = (55_000, 60_000)
SHUFFLE_SEED = 0
STAGE = "classifier_selection"
DISJOINT = (
    "The validation images must not be among those that the generator was trained on: then nobody is in both, and this epsilon, of the "
    "validation images, and the release's, of the training images, protect different people and do not add up."
)

# Images of uint8, shape [n, C, H, W], to classes of int64, shape [n].
Predictor = Callable[[np.ndarray], np.ndarray]


def split_for_training(images: ImageSet, size: int | None = None) -> tuple[ImageSet, ImageSet]:
    """Images to train on and images to validate with, as DPImageBench splits synthetic ones: shuffled by a fixed seed, the first 55,000
    and the rest. Fewer than 60,000 are split 11 to 1.

    Args:
        size (`int`, *optional*): Take so many images only, the first of the shuffle, and split them 11 to 1 even where they are more than
            60,000.

    Raises:
        UsageError: There are fewer images than `size`, or fewer than two.
    """
    train, whole = TRAIN_SHARE
    count = len(images) if size is None else size
    if count > len(images):
        raise UsageError(
            f"--utility_sizes asks for {count} of {len(images)} synthetic images; lower it, or draw more."
        )
    if count < 2:
        raise UsageError(
            f"To train and to validate takes at least 2 synthetic images, not {count}; give more with --images."
        )
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(images))[:count]
    first = train if size is None and count >= whole else max(1, count * train // whole)
    return images.subset(order[:first]), images.subset(order[first:])


@dataclass(frozen=True)
class PrivateChoice:
    """A choice that was paid for. All of it is the answer to a charged query and may be published.

    Args:
        chosen (`tuple[int, ...]`): Of each group, the index of the candidate with the highest noisy count.
        noisy_accuracies (`tuple[tuple[float, ...], ...]`): Noisy count over the declared number of validation images, group by group;
            can lie outside [0, 1].
        facts (`dict`): Epsilon, delta, noise multiplier, sensitivity, number of images, and whom they protect: JSON values.
    """

    chosen: tuple[int, ...]
    noisy_accuracies: tuple[tuple[float, ...], ...]
    facts: dict[str, Any] = field(default_factory=dict)


def choose_privately(
    groups: Sequence[Sequence[Predictor]],
    validation: ImageSet,
    *,
    epsilon: float,
    delta: float,
    ledger_path: Path | str | None = None,
    generator: PrivateGenerator | None = None,
) -> PrivateChoice:
    """Choose one candidate of each group by one noisy sum over real validation images.

    The question is `f(x) = (1[candidate j is right about x])_j` over all k candidates of all groups. One image moves the sum by `f(x)`,
    whose L2 norm is at most sqrt(k), the sensitivity; so a single Gaussian answer pays for everything, and the choice is
    post-processing.

    Args:
        groups (sequence of sequences of `Predictor`): What is chosen from. A group of one costs as much as another candidate: leave it
            out.
        validation (`ImageSet`): Real images with labels, disjoint from those that the generator was trained on. Their number is public.
        epsilon, delta (`float`): Budget of the validation images.
        ledger_path (`Path`, *optional*): Of the validation images' own ledger; in memory by default.
        generator (`PrivateGenerator`, *optional*): For tests.

    Raises:
        UsageError: Images without labels, nothing to choose from, more than 256 classes, or validation images that were asked before:
            one choice takes the whole budget.
        IntegrityError: The ledger was written for another budget or other validation images.
    """
    candidates = [predictor for group in groups for predictor in group]
    if not candidates or not all(groups):
        raise UsageError("There is no epoch to choose from; leave out --selection private.")
    refuse_second_choice(ledger_path)
    shape = validation.images.shape[1:]
    ledger = PrivacyLedger(
        ledger_path, target_epsilon=epsilon, target_delta=delta, num_images=len(validation),
        public_facts={"image_shape": list(shape), "use": "validation images, disjoint from the training images"},
    )  # fmt: skip
    try:
        noise_multiplier, sensitivity = ledger.calibrate(1.0, 1), sensitivity_of(len(candidates))
        answer = _with_labels_as_pixels(validation).noisy_sum(
            lambda pixels: _correctness(candidates, pixels),
            clip_norm=sensitivity,
            noise_multiplier=noise_multiplier,
            by_label=False,
            name=STAGE,
            ledger=ledger,
            query={"candidates": len(candidates), "normaliser": len(validation)},
            generator=generator,
        )
        facts = {
            "epsilon": ledger.epsilon(), "delta": delta, "noise_multiplier": noise_multiplier, "sensitivity": sensitivity,
            "candidates": len(candidates), "num_validation_images": len(validation), "statement": DISJOINT,
        }  # fmt: skip
    finally:
        ledger.close()
    noisy = np.split(answer.flatten().double().numpy() / len(validation), np.cumsum([len(g) for g in groups])[:-1])
    return PrivateChoice(
        tuple(int(part.argmax()) for part in noisy), tuple(tuple(part.tolist()) for part in noisy), facts
    )


def refuse_second_choice(ledger_path: Path | str | None) -> None:
    """Looks before classifiers are trained for nothing.

    Raises:
        UsageError: The ledger of the validation images holds a question.
    """
    if ledger_path is not None and Path(ledger_path).is_file() and len(Path(ledger_path).read_text().splitlines()) > 1:
        raise UsageError(
            "The validation images have answered before, and one choice takes their whole budget: choose on synthetic images, with "
            "--selection synthetic."
        )


def sensitivity_of(num_candidates: int) -> float:
    """L2 norm of as many ones: the most that one image moves the counts, when every candidate is right about it."""
    return math.sqrt(num_candidates)


def _with_labels_as_pixels(images: ImageSet) -> SensitiveImages:
    """The door hands a question images and no labels: here the label of each is one more channel of it."""
    labels, shape = labels_of(images), images.images.shape
    readable = (labels >= 0) & (labels < 256)
    if images.class_names is not None and len(images.class_names) > 256:
        raise UsageError(
            "A private choice knows at most 256 classes; choose on synthetic images, with --selection synthetic."
        )
    channel = np.broadcast_to(
        np.where(readable, labels, 0).astype(np.uint8)[:, None, None, None], (shape[0], 1, *shape[2:])
    )
    pixels = np.concatenate([images.images, channel], axis=1)
    return SensitiveImages(pixels, readable=readable, num_images=len(pixels), image_shape=pixels.shape[1:])


def _correctness(candidates: Sequence[Predictor], pixels: torch.Tensor) -> torch.Tensor:
    """Zeros and ones, float32, shape `[n, candidates]`; `pixels` of shape `[n, C + 1, H, W]` in [0, 1]."""
    rows = pixels.mul(255).round().byte().cpu().numpy()
    images, labels = np.ascontiguousarray(rows[:, :-1]), rows[:, -1, 0, 0].astype(np.int64)
    return torch.from_numpy(np.stack([candidate(images) == labels for candidate in candidates], axis=1)).float()
