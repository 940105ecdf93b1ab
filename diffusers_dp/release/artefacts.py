# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Artefacts that a release can contain: their files, and how they are saved, drawn from and described."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from huggingface_hub import ModelCardData
from PIL import Image, ImageDraw, ImageFont

from ..files.canonical import canonical_json
from ..pipelines import DPImagePipeline
from .allow_list import JUDGE_FILE, PIPELINE_FILES
from .cards import release_card


if TYPE_CHECKING:
    from ..models.judge import LabelJudge


TILE_SIZE = 56  # minimum side of a tile of the sample grid, in pixels
TILE_GAP = 2
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
    """Arranges rows of equally many images of one size and mode, each magnified by an integer factor to at least 56
    pixels, with optional names to their left."""
    first = rows[0][0]
    zoom = math.ceil(TILE_SIZE / min(first.size))
    width, height = first.width * zoom, first.height * zoom
    size = (len(rows[0]) * (width + TILE_GAP) - TILE_GAP, len(rows) * (height + TILE_GAP) - TILE_GAP)
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
    config = json.loads(config_file.read_text())
    return {key: value for key, value in config.items() if key != "_name_or_path"}


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
