# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Artefacts that a release can contain: their files, and how they are saved, drawn from and described."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from huggingface_hub import ModelCardData
from PIL import Image, ImageDraw, ImageFont

from ..errors import UsageError
from ..files.canonical import canonical_json
from ..pipelines import DPImagePipeline
from .allow_list import DATASET_CLASS, JUDGE_FILE, JUDGED, MOST_SHARDS, PIPELINE_FILES, dataset_files, shard_names
from .cards import dataset_data, release_card
from .image_tables import to_png, write_images


if TYPE_CHECKING:
    import torch

    from ..models.judge import LabelJudge


TILE_SIZE = 56  # minimum side of a tile of the sample grid, in pixels
TILE_GAP = 2
IMAGES_PER_SHARD = 10_000
IMAGES_PER_CLASS = 10  # in the sample grid
NAME_SIZE, LONGEST_NAME = 14, 24  # pixels of a letter, and letters of a class name, beside the sample grid


class Artefact(Protocol):
    """
    The publication of a run; all of it is post-processing of noisy answers.

    Attributes:
        files (`tuple[str, ...]`): Allow-list: the files that `save` writes into a release, beside card and receipt.
            One of them is `model_index.json`, to which the privacy statement is added.
    """

    @property
    def files(self) -> tuple[str, ...]: ...

    def save(self, release: Path) -> None:
        """Writes its files into an empty folder without reading the run's folder."""

    def card(self, receipt: dict[str, Any]) -> Any:
        """Returns the card, text or a `RepoCard`, with `verify.guarantee`, whose words the verifier looks for."""


class PipelineArtefact:
    """
    A `DPImagePipeline`: a diffusion model, or a one-step generator.

    Args:
        pipeline (`DPImagePipeline`): Pipeline with its final weights.
        samples (`PIL.Image.Image`): Picture in `samples.png`.
        judge (`LabelJudge`, *optional*): What says how probable each class of a draw is; it is released, too.
    """

    def __init__(self, pipeline: DPImagePipeline, *, samples: Image.Image, judge: "LabelJudge | None" = None):
        self.pipeline, self.samples, self.judge = pipeline, samples, judge
        self.files = PIPELINE_FILES if judge is None else (*PIPELINE_FILES, JUDGE_FILE)

    def save(self, release: Path) -> None:
        self.pipeline.save_pretrained(release)
        for config in (release / "model_index.json", release / "unet" / "config.json"):
            write_text(config, canonical_json(without_path(config)))
        if self.judge is not None:
            self.judge.save(release / JUDGE_FILE)
        self.samples.save(release / "samples.png")

    def card(self, receipt: dict[str, Any]) -> str:
        labels = self.pipeline.config.id2label
        tags = ["differential-privacy", "dp-sgd", "image-generation", "synthetic"]
        if all(event["stage"] != "dp_sgd" for event in receipt["events"]):
            tags.remove("dp-sgd")
        if labels is not None:
            tags.append("class-conditional")
        data = ModelCardData(library_name="diffusers", pipeline_tag="unconditional-image-generation", tags=tags)
        names = None if labels is None else [labels[number] for number in sorted(labels, key=int)]  # texts in JSON
        return release_card("model_card.md", data, receipt, names, latent=None)


def grid_of(rows: Sequence[Sequence[Image.Image]], names: Sequence[str] = ()) -> Image.Image:
    """Arranges rows of images of one size and mode, each magnified by an integer factor to at least 56 pixels, with
    optional names to their left."""
    first = rows[0][0]
    zoom = math.ceil(TILE_SIZE / min(first.size))
    width, height = first.width * zoom, first.height * zoom
    size = (max(map(len, rows)) * (width + TILE_GAP) - TILE_GAP, len(rows) * (height + TILE_GAP) - TILE_GAP)
    grid = Image.new(first.mode, size, "white")
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            tile = image.resize((width, height), Image.Resampling.NEAREST)
            grid.paste(tile, (column * (width + TILE_GAP), row * (height + TILE_GAP)))
    return _named(grid, names, height) if len(names) == len(rows) else grid


def _named(grid: Image.Image, names: Sequence[str], height: int) -> Image.Image:
    font = ImageFont.load_default(NAME_SIZE)
    lines = [" ".join(name.split()) for name in names]
    shown = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..." for name in lines]
    margin = math.ceil(max(font.getlength(name) for name in shown)) + NAME_SIZE
    named = Image.new(grid.mode, (margin + grid.width, grid.height), "white")
    named.paste(grid, (margin, 0))
    draw = ImageDraw.Draw(named)
    for row, name in enumerate(shown):
        middle = row * (height + TILE_GAP) + height // 2
        draw.text((margin - NAME_SIZE // 2, middle), name, fill="black", font=font, anchor="rm")
    return named


def without_path(config_file: Path) -> dict[str, Any]:
    """Reads a configuration without the path from which Diffusers loaded a model, because paths are private."""
    return {key: value for key, value in json.loads(config_file.read_text()).items() if key != "_name_or_path"}


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


@dataclass
class DatasetArtefact:
    """
    Images that are released instead of a model.

    Args:
        images (`torch.Tensor` of uint8, shape `[m, C, H, W]`): Images made from noisy answers and public data.
        labels (`torch.Tensor` of int64, shape `[m]`, *optional*): Class of each image; `None` without classes.
        class_names (sequence of `str`, *optional*): Public label set.
        purpose (`str`): Purpose of the images in one sentence, for the card.
        judge (`LabelJudge`, *optional*): What says how probable each class of an image is; it is released, too.

    Raises:
        UsageError: There are too many images for a release.
    """

    images: "torch.Tensor"
    labels: "torch.Tensor | None"
    class_names: Sequence[str] | None
    purpose: str = ""
    judge: "LabelJudge | None" = None

    def __post_init__(self) -> None:
        self.num_shards = math.ceil(len(self.images) / IMAGES_PER_SHARD)
        if self.num_shards > MOST_SHARDS:
            raise UsageError(f"A release holds up to {MOST_SHARDS * IMAGES_PER_SHARD:,} images; make fewer.")

    @property
    def files(self) -> tuple[str, ...]:
        """Allow-list, determined by the public number of images."""
        return dataset_files(self.num_shards, self.judge is not None)

    def save(self, release: Path) -> None:
        (release / "data").mkdir()
        for number, name in enumerate(shard_names(self.num_shards)):
            part = slice(number * IMAGES_PER_SHARD, (number + 1) * IMAGES_PER_SHARD)
            labels = None if self.labels is None else self.labels[part].tolist()
            pictures = [to_png(picture_of(image)) for image in self.images[part].cpu().numpy()]
            probabilities = None if self.judge is None else self.judge.label(self.images[part]).numpy()
            write_images(release / name, pictures, labels, self.class_names, probabilities)
        self.sample_grid().save(release / "samples.png")
        index = {
            "_class_name": DATASET_CLASS, "class_names": self.class_names, "image_shape": list(self.images.shape[1:]),
            "num_images": len(self.images), "num_shards": self.num_shards,
        }  # fmt: skip
        if self.judge is not None:
            self.judge.save(release / JUDGE_FILE)
            index[JUDGED] = True
        write_text(release / "model_index.json", canonical_json(index))

    def card(self, receipt: dict[str, Any]) -> str:
        number = len(self.images)
        return release_card(
            "data_release_card.md", dataset_data(number, self.class_names), receipt, self.class_names, "these images",
            num_images=number, purpose=self.purpose,
        )  # fmt: skip

    def sample_grid(self) -> Image.Image:
        """Arranges one row per class, or some rows without classes."""
        pictures = [picture_of(image) for image in self.images[: 8 * IMAGES_PER_CLASS].cpu().numpy()]
        if self.labels is not None:
            found = [(self.labels == label).nonzero().squeeze(1) for label in range(len(self.class_names or ()))]
            shown = [self.images[own[:IMAGES_PER_CLASS]].cpu().numpy() for own in found]
            rows = [[picture_of(image) for image in images] for images in shown]
            names = [name for name, row in zip(self.class_names or (), rows) if row]
            return grid_of([row for row in rows if row], names)
        columns = min(IMAGES_PER_CLASS, len(pictures))
        return grid_of([pictures[i : i + columns] for i in range(0, len(pictures) - columns + 1, columns)])


def picture_of(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
