"""Where images come from: the embedded digits, a folder of class folders, or a dataset (Hub id or local folder)."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import UsageError
from .dataset_source import DatasetSource
from .decoding import IMAGE_SUFFIXES, is_image
from .folders import class_folders, files_below, is_service
from .image_folders import ImageFolderSource, holds_images, is_table
from .medical import PACKAGES, check_medical
from .records import ListedRecords, Records
from .source import DataSource, ImageSource
from .values import in_nfc


def open_source(data: DataSource) -> ImageSource:
    """Chooses the source that the flags name. Raises `UsageError` where it does not exist."""
    if data.uses_digits:
        return DigitsSource()
    if data.train_data_dir is not None:
        check_medical(data.image_suffixes or (), data.value_range is not None)
        return ClassFolderSource(data.train_data_dir, data.class_names or (), data.image_suffixes)
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
        return DatasetSource(data.dataset_name, data)
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
    """The embedded digits."""

    def count(self) -> int:
        return 1437

    def class_names(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> Records:
        images, labels = load_digits_split(train=True)
        return ListedRecords([
            (Image.fromarray(image[0]), int(label), row) for row, (image, label) in enumerate(zip(images, labels))
        ])  # fmt: skip


class ClassFolderSource(ImageSource):
    """A folder with one folder per class; a declared class without a folder has no images."""

    ids = "path"

    def __init__(self, folder: str, class_names: tuple[str, ...], suffixes: tuple[str, ...] | None = None):
        self.root = Path(os.path.expanduser(folder))
        self.names = class_names
        there = class_folders(self.root, "train_data_dir")
        known = set(map(in_nfc, class_names))
        unknown = [name for name in there if name not in known]
        if unknown:
            raise UsageError(
                f"does not list the folder(s) {', '.join(unknown)}; add them, or move them away.",
                field="class_names",
            )
        if (service := next(filter(is_service, class_names), None)) is not None:
            raise UsageError(
                f"names '{service}', a folder of a system or a program, whose files are no records; rename it.",
                field="class_names",
            )
        self._files, self._ignored = [], Counter[str]()
        for path in files_below(self.root):
            if not is_image(path, suffixes):
                self._ignored["".join(path.suffixes[-2:]).lower()] += path.parent != self.root
            elif path.parent == self.root:
                raise UsageError(
                    "holds images outside the class folders; move each into its class.", field="train_data_dir"
                )
            else:
                self._files.append(path)

    def count(self) -> int:
        return len(self._files)

    def class_names(self) -> tuple[str, ...]:
        return self.names

    def ignored(self) -> dict[str, int]:
        return dict(self._ignored)

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> Records:
        relative = [path.relative_to(self.root) for path in self._files]
        place = {in_nfc(name): label for label, name in enumerate(self.names)}
        return ListedRecords(
            [(path, place[in_nfc(name.parts[0])], str(name)) for path, name in zip(self._files, relative)]
        )

    def files(self) -> list[Path | str]:
        return list(self._files)


def holds_one_image(file: Path | str) -> bool:
    """Whether a file is a picture, or a scan; others hold several, or describe them."""
    return str(file).lower().endswith((*IMAGE_SUFFIXES, *PACKAGES))
