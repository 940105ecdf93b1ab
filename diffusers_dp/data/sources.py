"""Where images come from: the embedded digits, a folder of class folders, or a dataset (Hub id or local folder)."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import UsageError
from .dataset_source import DatasetSource
from .decoding import IMAGE_SUFFIXES
from .image_folders import ImageFolderSource, holds_images, is_table
from .medical import PACKAGES, check_medical
from .records import DataSource, ImageSource, ListedRecords, MissingSplit, Records


def open_source(data: DataSource) -> ImageSource:
    """Chooses the source that the flags name. Raises `UsageError` where it does not exist."""
    if data.uses_digits:
        return DigitsSource()
    if data.train_data_dir is not None:
        check_medical(data.image_suffixes or (), data.value_range is not None)
        return ImageFolderSource(data)
    if data.dataset_name is not None:
        folder = Path(os.path.expanduser(data.dataset_name))
        if is_table(data.dataset_name) or (os.path.isdir(folder) and holds_images(folder)):
            return ImageFolderSource(data)
        if os.path.isfile(folder):
            raise UsageError(
                f"{data.dataset_name} is one file, and no table that is read (.csv, .jsonl): write it as one, with "
                "--delimiter for tabs, or give the folder that holds the Parquet files.",
                field="dataset_name",
            )
        return DatasetSource(data)
    raise UsageError("is given but no images are; add --train_data_dir or --dataset_name.", field="class_names")


def load_digits_split(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """
    One half of scikit-learn's 1,797 real handwritten digits, split once: stratified and fixed.

    Args:
        train (`bool`): True for the 1,437 digits to train on, False for the 360 to test on.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Images of shape `[n, 1, 8, 8]`, uint8 (0..16 scaled to 0..255), and labels
        of shape `[n]`, int64.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    return (split[0], split[2]) if train else (split[1], split[3])


class DigitsSource(ImageSource):
    """The embedded digits, of the split `train` or `test`."""

    def __init__(self, split: str = "train"):
        if split not in ("train", "test"):
            raise MissingSplit(f"'{split}' does not exist; there is: train, test.", field="train_split")
        self.split = split

    def count(self) -> int:
        return 1437 if self.split == "train" else 360

    def class_names(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> Records:
        images, labels = load_digits_split(train=self.split == "train")
        return ListedRecords([
            (Image.fromarray(image[0]), int(label), row) for row, (image, label) in enumerate(zip(images, labels))
        ])  # fmt: skip


def holds_one_image(file: Path | str) -> bool:
    """Whether a file is a picture, or a scan; others hold several, or describe them."""
    return str(file).lower().endswith((*IMAGE_SUFFIXES, *PACKAGES))
