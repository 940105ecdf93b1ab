# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Choice of a classifier's epoch: on synthetic images, at no cost, or privately on real validation images.

The published tables choose on real validation images without noise (DPImageBench mentions Report Noisy Max only in the
text). Their results were thus tuned on sensitive images without accounting. Here the private choice is a release of
the data set in its ledger.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_file import CHOICE, ReleaseRows, other_releases
from ..errors import UsageError
from ..files.sealed_folder import open_sealed
from ..privacy.sensitive import SensitiveImages
from ..privacy.stored_answers import NoisyAnswers
from ..queries.query import Query
from .classifiers import required_labels
from .images import ImageSet


# The first 55,000 of 60,000 synthetic images, in a fixed shuffle, are for training, the rest for validation.
TRAIN_SHARE = (55_000, 60_000)
SHUFFLE_SEED = 0
ONE_SUM = (
    "The query is counted in one sum with all releases of the data set that --dataset_id names, by their ledger, "
    "and receipts of later releases list it. Nobody adds up what another --dataset_id or --ledger_dir holds."
)

# Map from images of uint8, shape [n, C, H, W], to classes of int64, shape [n].
Predictor = Callable[[np.ndarray], np.ndarray]


def split_for_training(images: ImageSet, size: int | None = None) -> tuple[ImageSet, ImageSet]:
    """Splits images for training and validation, as DPImageBench splits synthetic ones: shuffles by a fixed seed, then
    takes the first 55,000 and the rest. Fewer than 60,000 are split 11 to 1.

    Args:
        size (`int`, *optional*): Number of images to use, the first of the shuffle; these are split 11 to 1 even if
            there are more than 60,000.
    """
    train, whole = TRAIN_SHARE
    count = len(images) if size is None else size
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(images))[:count]
    first = train if size is None and count >= whole else max(1, count * train // whole)
    return images.subset(order[:first]), images.subset(order[first:])


@dataclass(frozen=True, kw_only=True)
class ChoiceQuery(Query):
    """
    Whether each candidate classifies an image correctly, 1 or 0 per candidate.

    Args:
        candidates (`int`): Number of candidates.
    """

    name = CHOICE
    title = "choice of a classifier"
    by_label = False

    candidates: int

    @property
    def clip_norm(self) -> float:
        return math.sqrt(self.candidates)

    @property
    def facts(self) -> dict[str, Any]:
        return {"candidates": self.candidates}

    def normaliser(self, num_units: int, num_classes: int) -> int:
        return num_units


@dataclass(frozen=True)
class PrivateChoice:
    """A choice from the answer to a charged query; all of it may be published.

    Args:
        chosen (`tuple[int, ...]`): Index of the candidate with the highest noisy count in each group.
        noisy_accuracies (`tuple[tuple[float, ...], ...]`): Noisy counts divided by the declared number of validation
            images, by group; may be outside [0, 1].
        facts (`dict`): Epsilon, delta, noise multiplier, sensitivity, number of images, and the protected images: JSON
            values.
    """

    chosen: tuple[int, ...]
    noisy_accuracies: tuple[tuple[float, ...], ...]
    facts: dict[str, Any]


@dataclass(frozen=True)
class PrivateSelection:
    """What a private choice asks, and what it may spend.

    Args:
        validation (`ImageSet`): Labelled real images. Their declared number is public; unreadable images count for no
            candidate.
        epsilon, delta (`float`): Budget of the choice.
        ledger_path (`Path`): Ledger of the data set, `NAME.jsonl`, locked while it is written.
    """

    validation: ImageSet
    epsilon: float
    delta: float
    ledger_path: Path

    def ledger(self, path: Path | None = None, others: Sequence[ReleaseRows] = ()) -> PrivacyLedger:
        """Opens the ledger at `path`, or in memory beside the other releases."""
        shape = list(self.validation.images.shape[1:])
        return PrivacyLedger(
            path, target_epsilon=self.epsilon, target_delta=self.delta, num_images=self.validation.public_size,
            public_facts={"image_shape": shape, "use": "choice of classifiers' epochs"},
            unit_of_privacy=self.validation.unit_of_privacy, dataset_id=None if path is None else path.stem,
            release_id=None if path is None else CHOICE, others=others,
        )  # fmt: skip

    def releases(self) -> list[ReleaseRows]:
        """All of the data set, a choice among them."""
        return other_releases(
            self.ledger_path, dataset_id=self.ledger_path.stem, release_id="",
            unit_of_privacy=self.validation.unit_of_privacy,
        )  # fmt: skip


def choose_privately(
    groups: Sequence[Sequence[Predictor]], selection: PrivateSelection, subject: str
) -> PrivateChoice:
    """Chooses one candidate of each group by one noisy sum over real validation images.

    The query is `f(x) = (1[candidate j is right about x])_j` over all k candidates of all groups. One image changes
    the sum by `f(x)`, whose L2 norm is at most sqrt(k), the sensitivity. A single Gaussian answer pays for everything,
    and the choice is post-processing.

    Args:
        groups (sequence of sequences of `Predictor`): Groups of candidates. Leave out groups of one, because their
            candidate costs privacy, too.
        selection (`PrivateSelection`): Validation images, budget and ledger.
        subject (`str`): What the candidates were made of and who is asked about them, in a word that the same call has
            again: then it finds the answer that was given, kept in the folder `NAME` beside the ledger.

    Raises:
        UsageError: There are no labels or no candidates; or as `check_choice`.
        IntegrityError: The ledger was written for another budget or other validation images; or as `check_choice`.
    """
    candidates = [predictor for group in groups for predictor in group]
    if not candidates or not all(groups):
        raise UsageError("There is no epoch to choose from; leave out --selection private.")
    check_choice(selection, subject)
    validation = selection.validation
    ledger = selection.ledger(selection.ledger_path)
    try:
        _refuse_second_choice(selection, subject)  # checked again under the lock
        query = ChoiceQuery(candidates=len(candidates))
        noise_multiplier = ledger.asked[0].noise_multiplier if ledger.rows else ledger.calibrate(query.mechanism(), 1)

        def ask() -> dict[str, torch.Tensor]:
            counts = query.ask(
                _door_to(validation, ledger), lambda images, labels: _correctness(candidates, images, labels),
                noise_multiplier=noise_multiplier,
            )  # fmt: skip
            return {"noisy_counts": counts}

        answers, asked = _answers(selection.ledger_path), {"asked": subject, "candidates": len(candidates)}
        answer = answers.ask(query.row(noise_multiplier), ledger, ask, **asked)["noisy_counts"]
        facts = {
            "epsilon": ledger.epsilon(), "delta": selection.delta, "noise_multiplier": noise_multiplier,
            "sensitivity": query.clip_norm, "unit_of_privacy": validation.unit_of_privacy,
            "epsilon_of_all_releases": ledger.epsilon_of_all_releases(),
            "candidates": len(candidates), "num_validation_images": validation.public_size, "statement": ONE_SUM,
        }  # fmt: skip
    finally:
        ledger.close()
    noisy = np.split(
        answer.flatten().double().numpy() / validation.public_size, np.cumsum([len(g) for g in groups])[:-1]
    )
    return PrivateChoice(
        tuple(int(part.argmax()) for part in noisy), tuple(tuple(part.tolist()) for part in noisy), facts
    )


def _answers(ledger_path: Path) -> NoisyAnswers:
    """Opens the store beside the ledger, in a folder that only its owner can read, because somebody who has the images
    could test the hash of the query."""
    folder = ledger_path.with_suffix("")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--ledger_dir: {folder} cannot be used ({error.strerror}); give another folder.") from None
    return NoisyAnswers(folder)


def check_choice(selection: PrivateSelection, subject: str) -> None:
    """Refuses a choice that cannot be, before classifiers are trained in vain. See `choose_privately` for arguments.

    Raises:
        UsageError: The validation images have already answered another query, or the releases of the data set
            leave nothing of a bound.
        IntegrityError: They protect another unit, or the ledger or the stored answer is damaged.
    """
    if not _refuse_second_choice(selection, subject):
        selection.ledger(others=selection.releases()).calibrate(ChoiceQuery(candidates=1).mechanism(), 1)


def _refuse_second_choice(selection: PrivateSelection, subject: str) -> bool:
    """Whether the validation images have answered this query. Raises `UsageError` where it was another one."""
    if not any(release.header["release_id"] == CHOICE and release.rows for release in selection.releases()):
        return False
    kept = selection.ledger_path.with_suffix("") / CHOICE
    if not kept.is_dir() or open_sealed(kept)[0]["query"]["asked"] != subject:
        raise UsageError(
            "The validation images have answered before, and one choice takes their whole budget: choose on synthetic "
            f"images, with --selection synthetic. (The ledger of their data set is {selection.ledger_path}.)"
        )
    return True


def _door_to(images: ImageSet, ledger: PrivacyLedger) -> SensitiveImages:
    """A label outside the label set is a damaged record."""
    return SensitiveImages(
        images.images, required_labels(images), num_images=images.public_size, capacity=images.capacity,
        image_shape=images.images.shape[1:], ledger=ledger, class_names=images.class_names, units=images.units,
        num_units=images.public_size,
    )  # fmt: skip


def _correctness(candidates: Sequence[Predictor], images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """Tells which candidates are right: zeros and ones, float32, `[n, candidates]`; `images` `[n, C, H, W]` in [0,
    1]."""
    assert labels is not None
    pixels, classes = images.mul(255).round().byte().cpu().numpy(), labels.cpu().numpy()
    return torch.from_numpy(np.stack([candidate(pixels) == classes for candidate in candidates], axis=1)).float()
