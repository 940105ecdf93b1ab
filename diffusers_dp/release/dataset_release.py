# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release of images: parquet shards for `datasets.load_dataset`, with card and receipt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..errors import UsageError
from ..files.canonical import canonical_json
from .allow_list import DATASET_CLASS, JUDGE_FILE, JUDGED, MOST_SHARDS, dataset_files, shard_names
from .artefacts import IMAGES_PER_CLASS, grid_of, write_text
from .cards import dataset_data, release_card
from .image_tables import to_png, write_images


if TYPE_CHECKING:
    import torch

    from ..models.judge import LabelJudge

IMAGES_PER_SHARD = 10_000


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
            pictures = [to_png(_picture(image)) for image in self.images[part].cpu().numpy()]
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
        pictures = [_picture(image) for image in self.images[: 8 * IMAGES_PER_CLASS].cpu().numpy()]
        if self.labels is not None:
            found = [(self.labels == label).nonzero().squeeze(1) for label in range(len(self.class_names or ()))]
            columns = min(IMAGES_PER_CLASS, *(len(own) for own in found if len(own)))
            rows = [[_picture(image) for image in self.images[own[:columns]].cpu().numpy()] for own in found]
            names = [name for name, row in zip(self.class_names or (), rows) if row]
            return grid_of([row for row in rows if row], names)
        columns = min(IMAGES_PER_CLASS, len(pictures))
        return grid_of([pictures[i : i + columns] for i in range(0, len(pictures) - columns + 1, columns)])


def _picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
