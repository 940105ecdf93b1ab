# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases of every kind: fetched completely, verified, and only then loaded. Only loading a model loads torch."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..data.layouts import open_picture
from ..errors import IntegrityError, UsageError
from ..verify import (
    ADAPTERS,
    NO_CARD,
    Unreadable,
    about_delta,
    card_agrees,
    check_index,
    check_reference,
    publishes_records,
    verify,
)
from .allow_list import (
    ADAPTER_FILES,
    JUDGE_FILE,
    JUDGED,
    LATENT_PIPELINES,
    LORA_FILE,
    PIPELINE_FILES,
    dataset_files,
    dataset_index,
    kind_of,
    merged_files,
)
from .components import (
    LARGEST_SIDE,
    LOADED_FILES,
    MOST_CLASSES,
    WrongModel,
    check_components,
    check_model,
    class_names_of,
    read_json,
    refused,
    these_alone,
    try_scheduler,
)
from .hub import fetch_release
from .image_tables import PROBABILITIES, Shape, described, load_images


if TYPE_CHECKING:
    from datasets import Dataset
    from PIL import Image

    from ..models.judge import LabelJudge
    from ..pipelines import DPImagePipeline

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Release:
    """
    A release in a folder. What is read of it is cached; it is pickled as long as nothing is loaded.

    Args:
        name (`str`): Name in messages: as it was asked for.
        folder (`Path`): Folder of its files.
        receipt (`dict`): Its receipt; empty if none can be read.
        problems (tuple of `str`): A sentence for each mismatch that the verifier found.
        class_names (tuple of `str`, *optional*): Class names by id, if `described_classes` was called.
        base (`str` or `Path`, *optional*): Folder of the base of adapters; by default it is fetched from the Hub.
        card_agrees (`bool`): Whether the card states the guarantee of a verified receipt.
    """

    name: str
    folder: Path
    receipt: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    base: str | Path | None = None
    card_agrees: bool = True

    @property
    def stated_base(self) -> dict[str, Any] | None:
        """Reference to the base of adapters; `None` for all other releases."""
        return None


class ModelRelease(Release):
    """A `DPImagePipeline`: a diffusion model, or a one-step generator."""

    repo_type: ClassVar[str] = "model"
    holds_images: ClassVar[bool] = False
    #: Whether checks before loading cannot show that the parts of the model fit each other.
    may_fail_to_draw: ClassVar[bool] = False

    @property
    def files(self) -> tuple[str, ...]:
        """Allow-list of this kind of release, without card and receipt."""
        return (*PIPELINE_FILES, JUDGE_FILE) if (self.folder / JUDGE_FILE).is_file() else PIPELINE_FILES

    def described_classes(self, largest_side: int, most_classes: int) -> tuple[str, ...] | None:
        """Reads the class names, by id, and checks the sizes that the release states. Loads nothing.

        Raises:
            IntegrityError: The release is not of this library, or larger than these limits.
        """
        with refused(self.name):
            return check_components(self.folder, largest_side, most_classes).class_names

    @cached_property
    def pipeline(self) -> "DPImagePipeline":
        """Loaded pipeline, without a progress bar."""
        pipeline = self.load()
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def load(self, **arguments: Any) -> "DPImagePipeline":
        from ..pipelines import DPImagePipeline

        with refused(self.name):
            check_model(check_components(self.folder))
        # Arguments may be wrong: then the caller gets the error.
        with these_alone(self.folder, LOADED_FILES) as place, nullcontext() if arguments else refused(self.name):
            pipeline = DPImagePipeline.from_pretrained(place, **{**arguments, "use_safetensors": True})
        pipeline.register_to_config(_name_or_path=str(self.folder))  # where `save_pretrained` finds the receipt
        with suppress(UsageError):  # the judge's network is not installed, and who draws alone needs none
            vars(self)["judge"] = self._judge_of(pipeline)  # cached
        return pipeline

    @cached_property
    def judge(self) -> "LabelJudge | None":
        """What says how probable each class of a draw is, where the release holds it; maybe a stranger's."""
        return self._judge_of(self.pipeline)

    def _judge_of(self, pipeline: "DPImagePipeline") -> "LabelJudge | None":
        if JUDGE_FILE not in self.files:
            return None
        from ..models.judge import load_judge

        judge = load_judge(self.folder / JUDGE_FILE, shape_of(pipeline), pipeline.num_classes or 0)
        told, seen = self.receipt.get("curriculum", {}), (judge.features.num_frequencies, judge.features.kind)
        if self.receipt and (told.get("judge_frequencies"), told.get("judge_features")) != seen:
            raise IntegrityError(f"'{self.name}' was not loaded: its receipt tells of another judge.")
        return judge

    @property
    def image_shape(self) -> Shape:
        """(C, H, W) of an image."""
        return shape_of(self.pipeline)


def shape_of(pipeline: "DPImagePipeline") -> Shape:
    """(C, H, W) of an image of a model."""
    patch, unet = pipeline.config.patch_size, pipeline.unet.config
    size = unet.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    return unet.in_channels // patch**2, height * patch, width * patch


class LatentRelease(ModelRelease):
    """A whole latent pipeline of Diffusers, or adapters of one with a reference to it."""

    may_fail_to_draw = True

    @property
    def files(self) -> tuple[str, ...]:
        return ADAPTER_FILES if kind_of(self.folder) == ADAPTERS else merged_files(self.folder)

    @cached_property
    def _index(self) -> dict[str, Any]:
        """`model_index.json` with a checked base, and with checked class names by id.

        Raises:
            IntegrityError: A field is not valid.
        """
        with refused(self.name):
            index = read_json(self.folder / "model_index.json")
            base = index.get("base") if index.get("_class_name") == ADAPTERS else None
            for problem in (*check_index(self.folder), *([] if base is None else check_reference(base))):
                raise WrongModel(problem.rstrip("."))
            labels = index.get("id2label")
            if labels is not None:
                if not 0 < len(labels) <= MOST_CLASSES:
                    raise WrongModel(f"its id2label names no classes, or more than {MOST_CLASSES:,}")
                labels = dict(enumerate(class_names_of(labels, len(labels))))
        return {"id2label": labels, "class_prompts": index.get("class_prompts"), "base": base}

    def described_classes(self, largest_side: int, most_classes: int) -> tuple[str, ...] | None:
        labels = self._index["id2label"]
        with refused(self.name):
            if labels is not None and len(labels) > most_classes:
                raise WrongModel(f"it has more than {most_classes:,} classes")
        return None if labels is None else tuple(labels.values())

    @property
    def stated_base(self) -> dict[str, Any] | None:
        return self._index["base"]

    def load(self, **arguments: Any) -> "DPImagePipeline":
        """See `ModelRelease.load`; takes `torch_dtype` alone.

        Raises:
            IntegrityError: The adapters do not fit the base, the base is another one, or the model cannot draw.
            UsageError: The base is not available, or there are other arguments.
        """
        from .latent_artefacts import load_adapters
        from .latent_base import drawing_pipeline, load_base, referenced_base

        dtype = arguments.pop("torch_dtype", None) or arguments.pop("dtype", None)
        if arguments:
            raise UsageError(
                f"'{self.name}' is a latent model, which takes torch_dtype alone, and not {min(arguments)}."
            )
        index = self._index
        if index["base"] is None:
            found = load_base(str(self.folder), flag="the release")
        else:
            found = referenced_base(index["base"], self.base)
            load_adapters(found, self.folder / LORA_FILE)
        with refused(self.name):
            pipeline = drawing_pipeline(found, index["id2label"], index["class_prompts"])
            try_scheduler(pipeline.scheduler)
            if max(pipeline.image_shape[1:]) > LARGEST_SIDE:
                raise WrongModel(f"its images have more than {LARGEST_SIDE} pixels a side")
        return pipeline if dtype is None else pipeline.to(dtype)

    @property
    def image_shape(self) -> Shape:
        return self.pipeline.image_shape


class ImagesRelease(Release):
    """Images that are released instead of a model."""

    repo_type: ClassVar[str] = "dataset"
    holds_images: ClassVar[bool] = True

    @property
    def files(self) -> tuple[str, ...]:
        index = dataset_index(self.folder)
        return () if index is None else dataset_files(index["num_shards"], JUDGED in index)

    def described_classes(self, largest_side: int, most_classes: int) -> tuple[str, ...] | None:
        with refused(self.name):
            names = described(self.folder, largest_side, most_classes)["class_names"]
        return None if names is None else tuple(names)

    @cached_property
    def images(self) -> "Dataset":
        """Loaded images."""
        return self.load()

    def load(self, **arguments: Any) -> "Dataset":
        """See `load_images`; takes no arguments."""
        if arguments:
            raise UsageError(
                f"'{self.name}' is a release of images, which takes no arguments; leave {min(arguments)} out."
            )
        return load_images(self.name, self.folder)

    def pick(
        self, labels: Sequence[int] | None, count: int, seed: int
    ) -> "tuple[list[Image.Image], np.ndarray | None]":
        """Picks images of these classes in an order that depends on the seed; repeats one only after all others.
        Returns them, and their soft labels where there are some."""
        import datasets

        rows = self.images.cast_column("image", datasets.Image(decode=False))
        mixed = np.random.default_rng(seed).permutation(len(self.images))
        of_mixed = np.zeros(len(mixed), int) if labels is None else np.array(self.images["label"])[mixed]
        turns: dict[int, int] = {}
        found: list[int] = []
        for label in labels or [0] * count:
            places, turn = mixed[of_mixed == label], turns.setdefault(label, 0)
            if not len(places):
                raise ValueError(f"No image has the class '{rows.features['label'].names[label]}': choose others.")
            found.append(int(places[turn % len(places)]))
            turns[label] += 1
        picked = rows.select(found)
        soft = np.asarray(picked[PROBABILITIES], np.float32) if PROBABILITIES in picked.column_names else None
        return [open_picture(image["bytes"]) for image in picked["image"]], soft


AnyRelease = ModelRelease | ImagesRelease


def release_in(folder: str | Path, name: str | None = None, **known: Any) -> AnyRelease:
    """Returns the release of the kind that a folder claims to hold. Nothing of it is checked.

    Args:
        folder (`str` or `Path`): Folder of the release.
        name (`str`, *optional*): Name for messages; defaults to the folder.
        known: Further fields of `Release`.
    """
    name, folder = str(folder) if name is None else name, Path(folder)
    if dataset_index(folder) is not None:
        return ImagesRelease(name, folder, **known)
    return (LatentRelease if kind_of(folder) in (ADAPTERS, *LATENT_PIPELINES) else ModelRelease)(name, folder, **known)


def read_release(folder: Path, name: str, **known: Any) -> AnyRelease:
    """Verifies a release and loads nothing of it. `problems` states what does not match; see `release_in`."""
    try:
        receipt, problems = verify(folder)
    except Unreadable as error:
        receipt, problems = {}, [str(error)]
    agrees = bool(problems) or card_agrees(folder, receipt)
    return release_in(folder, name, receipt=receipt, problems=tuple(problems), card_agrees=agrees, **known)


def open_release(
    release: str | Path, require_dp: bool = True, *, revision: str | None = None, base: str | Path | None = None
) -> AnyRelease:
    """Fetches and verifies a release; `load_verified` has the arguments, warnings and errors."""
    found = read_release(fetch_release(release, revision), str(release), base=base)
    if found.problems and require_dp:
        raise IntegrityError(f"'{release}' was not loaded: {' '.join(found.problems)}")
    if base is not None and kind_of(found.folder) != ADAPTERS:
        raise UsageError(
            f"--base {base} is for adapters, and '{release}' is a whole model or a data set: leave it out."
        )
    for problem in found.problems:
        logger.warning("'%s' is NOT verified, do not take it for private: %s", release, problem)
    if not found.card_agrees:
        logger.warning("'%s': %s, so trust the receipt and not the card.", release, NO_CARD)
    outright = "" if found.problems else publishes_records(*about_delta(found.receipt))
    if outright:
        logger.warning("'%s': %s", release, outright)
    return found


def open_model(release: str | Path, require_dp: bool = True, *, base: str | Path | None = None) -> ModelRelease:
    """Calls `open_release` for a model. Raises `UsageError` for a release of images."""
    found = open_release(release, require_dp, base=base)
    if isinstance(found, ImagesRelease):
        raise UsageError(
            f"'{release}' is a release of images, and no model that draws: `datasets.load_dataset` reads them, and "
            "`diffusers-dp evaluate --images` judges them."
        )
    return found


def load_verified(
    release: str | Path,
    require_dp: bool = True,
    *,
    revision: str | None = None,
    base: str | Path | None = None,
    **arguments: Any,
) -> "DPImagePipeline | Dataset":
    """Fetches a release, verifies its receipt, and loads its pipeline or images.

    Args:
        release (`str` or `Path`): Folder, or Hub id.
        require_dp (`bool`, defaults to `True`): `False` also loads a release that does not match, with a warning for
            each mismatch.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.
        base (`str` or `Path`, *optional*): Folder of the base, if the release has adapters; by default it is fetched
            from the Hub by its commit. It is compared with the hashes in the release.
        arguments: Passed to `DPImagePipeline.from_pretrained` (`torch_dtype`, ...). Weights are always safetensors.
            Latent models accept `torch_dtype` alone, and images no argument.

    Returns:
        `DPImagePipeline`, on the CPU, or `datasets.Dataset` with the columns `image` and, with classes, `label`; where
        a judge labelled the images, also `label_probabilities`. The verified property is "numbers consistent": see
        `verify`.

    Raises:
        IntegrityError: There is no receipt; a file, hash or epsilon differs from it; or it states no guarantee.
            For any `require_dp`: the model is not one of this library, its configuration does not fit its weights
            (`components`), or the base is another one.
        UsageError: The folder or repository does not exist, the base is not available, or the release does not accept
            an argument.
    """
    return open_release(release, require_dp, revision=revision, base=base).load(**arguments)
