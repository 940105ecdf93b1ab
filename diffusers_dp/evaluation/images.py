# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images that are judged, or that others are judged against: where they come from, and how they are made
comparable."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from ..data.decoding import MAX_IMAGE_PIXELS, ValueRange, decode_as_it_is, decode_image
from ..data.images import validation_positions
from ..data.source import DataSource
from ..data.sources import DatasetSource, ImageSource, load_digits_split, open_source
from ..errors import UsageError
from ..methods.flag_groups import split_list
from ..release.components import LARGEST_SIDE
from ..release.hub import fetch_snapshot
from ..release.image_tables import open_images


Shape = tuple[int, int, int]  # channels, height, width
#: Bytes that a stranger's pictures may be decoded to, beside so many times those of their files.
DECODED, TIMES = 2**27, 200
UNCOUNTED = "{desc}: {elapsed}"  # a progress bar over private images: how many there are is not for the terminal


@dataclass(frozen=True)
class ImageSet:
    """8-bit images in memory, with their labels.

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): C is 1 or 3.
        labels (`np.ndarray` of int64, shape `[N]`, *optional*): Indices of `class_names`.
        class_names (`tuple[str, ...]`, *optional*): Of all classes, also of those without an image.
        origin (`dict`): Where they come from, for the report: JSON values, no path of this machine.
        positions (`np.ndarray` of int64, shape `[N]`, *optional*): Of each image in its split, unreadable ones
            counted.
        num_declared (`int`, *optional*): Images of the set, unreadable ones counted: the number that is public. Unset:
            N.
    """

    images: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    positions: np.ndarray | None = None
    num_declared: int | None = None

    @property
    def public_size(self) -> int:
        """What may decide rates, divisors and budgets: it stays the same if an image cannot be read."""
        return len(self) if self.num_declared is None else self.num_declared

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, index: np.ndarray) -> "ImageSet":
        """The images at `index`, in that order."""
        labels, positions = (None if each is None else each[index] for each in (self.labels, self.positions))
        return ImageSet(self.images[index], labels, self.class_names, self.origin, positions)


@dataclass(frozen=True)
class Source:
    """A data set as flags name it: what can be read from it, split by split.

    Args:
        flag (`str`): The flag that names it, for messages.
        name (`str`, *optional*): Hub id or folder, as `datasets.load_dataset` takes it; `None`: the embedded digits.
        image_column, label_column, class_names: As in training; `class_names` is comma-separated.
        split_flag (`str`): The flag that names the split, for messages.
        facts (`dict`, *optional*): What the report says of the images, where that is not the name of the data set.
        counted (`bool`, defaults to `False`): Whether the terminal may show how many there are.
        max_pixels (`int`): An image of more counts as one that cannot be read.
        value_range (`tuple[float, float]`, *optional*): As in `decode_image`.
        is_strange (`bool`, defaults to `False`): Whether somebody else made them: see `data.strange_tables`.
    """

    flag: str
    name: str | None
    image_column: str = "image"
    label_column: str | None = None
    class_names: str | None = None
    split_flag: str = "--train_split"
    facts: dict[str, Any] | None = None
    counted: bool = False
    max_pixels: int = MAX_IMAGE_PIXELS
    value_range: ValueRange | None = None
    is_strange: bool = False

    def shape(self, split: str, cache_dir: Path) -> Shape:
        """(channels, height, width) of the first image that can be read.

        Raises:
            UsageError: There is no such data set, split or column, or none of its images can be read.
        """
        for encoded, _ in self._records(split, cache_dir)[1]:
            image = decode_as_it_is(encoded, self._most_pixels, self.value_range)
            if image is not None:
                channels, height, width = image.shape
                return channels, height, width
        raise UsageError(f"{self.flag} {self._words(split)} holds no image that can be read; give another data set.")

    def load(
        self, split: str, shape: Shape, *, resize: bool, cache_dir: Path, limit: int | None = None, seed: int = 0
    ) -> ImageSet:
        """All images that can be read, with their labels if there are any; an image without its label counts as
        unreadable.

        Args:
            split (`str`): Name of the split; that of the embedded digits is `train` or `test`.
            shape (`tuple[int, int, int]`): What the images must be.
            resize (`bool`): Whether others are made to fit (see `fit`) rather than refused.
            cache_dir (`Path`): A folder as private as the images, for what `datasets` caches.
            limit (`int`, *optional*): Images at most, drawn without replacement, for a folder may be sorted by class.
            seed (`int`, defaults to 0): Of the draw.

        Raises:
            UsageError: There is no such data set, split or column, no image can be read, or one has another size.
        """
        names, records = self._records(split, cache_dir)
        kept: list[tuple[int, np.ndarray, int | None]] = []  # position, image, label
        draws, readable, position, left = np.random.default_rng(seed), 0, -1, DECODED
        for position, (encoded, label) in enumerate(
            tqdm(
                records,
                desc=f"Reading {self.flag[2:]} ({split})",
                unit="image",
                bar_format=None if self.counted else UNCOUNTED,
            )
        ):
            image = decode_as_it_is(encoded, self._most_pixels, self.value_range)
            left += TIMES * _size(encoded) - (0 if image is None else image.nbytes)
            if self.is_strange and left < 0:
                raise UsageError(f"{self.flag} {self._words(split)} would unpack to far more than its files hold.")
            if image is None or (names is not None and label is None):
                continue
            if image.shape != shape:
                image = fit(image, shape) if resize else self._refuse_shape(split, image.shape, shape)
            readable += 1
            if limit is None or len(kept) < limit:
                kept.append((position, image, label))
            elif (place := draws.integers(readable)) < limit:  # a reservoir (Vitter 1985, Algorithm R)
                kept[place] = position, image, label
        if not kept:
            raise UsageError(
                f"{self.flag} {self._words(split)} holds no image that can be read; give another data set."
            )
        positions, images, labels = zip(*sorted(kept, key=lambda record: record[0]), strict=True)
        origin = {
            **(self.facts or {"dataset": self._public_name(), "split": split}),
            "unreadable": position + 1 - readable,
        }
        if len(kept) < readable:
            origin["drawn"] = f"{len(kept)} of {readable} images at random, without replacement, by seed {seed}"
        array = None if names is None else np.array(labels, dtype=np.int64)
        declared = position + 1 if limit is None else None
        return ImageSet(np.stack(images), array, names, origin, np.array(positions), declared)

    @property
    def _most_pixels(self) -> int:
        return min(self.max_pixels, LARGEST_SIDE**2) if self.is_strange else self.max_pixels

    def _refuse_shape(self, split: str, found: Any, wanted: Shape) -> np.ndarray:
        raise UsageError(
            f"{self.flag} {self._words(split)} holds an image of {_shape_words(found)} where {_shape_words(wanted)} "
            "are compared; --resize makes it fit."
        )

    def _records(
        self, split: str, cache_dir: Path
    ) -> tuple[tuple[str, ...] | None, Iterator[tuple[bytes | Path | Image.Image | None, int | None]]]:
        if self.name is None:
            if split not in ("train", "test"):
                raise UsageError(f"{self.split_flag} '{split}' does not exist; the embedded digits have: train, test.")
            pictures, labels = load_digits_split(train=split == "train")
            names = tuple("0123456789")
            return names, ((Image.fromarray(image[0]), int(label)) for image, label in zip(pictures, labels))
        folder = folder_of(self.flag, self.name) if self.is_strange else Path(self.name).expanduser()
        loaded = open_images(self.name, folder) if os.path.isdir(folder) else None
        data = DataSource(
            dataset_name=str(folder) if self.is_strange else self.name, train_split=split,
            own_files=self.flag != "--real", is_strange=self.is_strange,
        )  # fmt: skip
        if loaded is None:  # else it tells its columns and classes
            declared = None if self.class_names is None else split_list(self.class_names)
            data = replace(data, class_names=declared, image_column=self.image_column, label_column=self.label_column)
        with self._own_flags():
            source = open_source(data) if loaded is None else DatasetSource(self.name, data, loaded)
            found = source.class_names()
        return found, self._read(source, found, cache_dir)

    def _read(self, source: ImageSource, names: tuple[str, ...] | None, cache_dir: Path) -> Iterator[Any]:
        with self._own_flags():
            for encoded, label, _ in source.records(names, cache_dir):
                yield encoded, label

    @contextmanager
    def _own_flags(self) -> Iterator[None]:
        """The messages of training, with the flags of an evaluation."""
        try:
            yield
        except UsageError as error:
            text = str(error).replace("--dataset_name", self.flag).replace("--train_split", self.split_flag)
            text = text.replace("does not exist;", f"does not exist in {self.flag};") if "column" in text else text
            if self.flag == "--public_images":
                text = text.replace("--image_column", "--public_image_column")
            raise type(error)(text) from None

    def _public_name(self) -> str:
        """The name without the folders of this machine."""
        if self.name is None:
            return "scikit-learn digits"
        return Path(self.name).resolve().name if Path(self.name).expanduser().exists() else self.name

    def _words(self, split: str) -> str:
        return f"{self.name or 'digits'} ({split})"


def folder_of(flag: str, name: str) -> Path:
    """Where a data set of somebody else lies on this machine: it is fetched whole before it is looked at.

    Raises:
        UsageError: There is none of that name.
    """
    folder = Path(name).expanduser()
    if os.path.isdir(folder):  # `Path.is_dir` raises where a name is too long
        return folder
    return fetch_snapshot(name, kind="a data set", flag=flag, repo_types=("dataset",))


def _size(encoded: bytes | Path | Image.Image | None) -> int:
    """Bytes of an encoded image."""
    if isinstance(encoded, bytes):
        return len(encoded)
    return encoded.stat().st_size if isinstance(encoded, Path) and encoded.is_file() else 0


def fit(image: np.ndarray, shape: Shape) -> np.ndarray:
    """An image in another shape, as in training and in DPImageBench: its shorter side resized by Lanczos, its centre
    cropped, and colours made grey by .299 R + .587 G + .114 B, or grey repeated.

    Args:
        image (`np.ndarray` of uint8, shape `[C, H, W]`): C is 1 or 3.
        shape (`tuple[int, int, int]`): The wanted (channels, height, width).
    """
    picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    fitted = decode_image(picture, shape)
    assert fitted is not None  # an array can always be read
    return fitted


def common_shape(
    synthetic: Shape, real: Shape, *, resize: bool, flags: tuple[str, str] = ("--images", "--real")
) -> Shape:
    """The shape in which both are compared: the synthetic images' size, and grey if either is grey.

    Raises:
        UsageError: They differ, and `resize` is not set.
    """
    if synthetic != real and not resize:
        raise UsageError(
            f"{flags[0]} holds images of {_shape_words(synthetic)} and {flags[1]} of {_shape_words(real)}; --resize "
            "makes them fit."
        )
    return min(synthetic[0], real[0]), *synthetic[1:]


def _shape_words(shape: Shape) -> str:
    return f"{shape[2]}x{shape[1]} pixels and {shape[0]} channel{'s' if shape[0] > 1 else ''}"


def validation_split(images: ImageSet, size: int) -> tuple[ImageSet, ImageSet]:
    """Training and validation images as `--validation_size` splits them when a model is trained, which goes by
    position: what a generator was not trained on then is the same that is held out here. (DPImageBench draws as many,
    others, by torch's `random_split`.)

    Args:
        images (`ImageSet`): A whole split, as `Source.load` returns it.
        size (`int`): `--validation_size`.

    Raises:
        UsageError: No image would be left on one of the sides.
    """
    assert images.positions is not None  # Source.load puts them
    capacity = len(images) + images.origin["unreadable"]
    if size >= capacity:
        raise UsageError(f"--validation_size {size} leaves none of the real images; lower it.")
    held_out = validation_positions(capacity, size)[images.positions]
    if held_out.all() or not held_out.any():
        raise UsageError(f"--validation_size {size} leaves no readable image on one side; give another number.")
    train, validation = images.subset(np.flatnonzero(~held_out)), images.subset(np.flatnonzero(held_out))
    return replace(train, num_declared=capacity - size), replace(validation, num_declared=size)


def with_classes_of(synthetic: ImageSet, real: ImageSet) -> tuple[ImageSet, list[str]]:
    """The synthetic images with labels that mean the real images' classes, and what is to be warned of.

    Classes go by name; where no name is in both sets and there are as many, by position.

    Raises:
        UsageError: The classes have nothing to do with each other.
    """
    if synthetic.labels is None or real.labels is None:
        missing = " and ".join(
            name for name, each in (("synthetic", synthetic), ("real", real)) if each.labels is None
        )
        return ImageSet(synthetic.images, None, None, synthetic.origin), [
            f"The {missing} images have no labels: utility, distances of classes and features of a classifier are "
            "left out."
        ]
    ours, theirs = synthetic.class_names or (), real.class_names or ()
    warnings = []
    if set(ours) <= set(theirs):
        places = np.array([theirs.index(name) for name in ours])
    elif len(ours) == len(theirs) and not set(ours) & set(theirs):
        places = np.arange(len(ours))
        warnings.append(
            "The classes have other names in the synthetic than in the real images; they were matched by position."
        )
    else:
        raise UsageError(
            f"The synthetic images have the classes {', '.join(ours)}, the real ones {', '.join(theirs)}; give "
            "--class_names."
        )
    labels = places[synthetic.labels]
    counts = np.bincount(labels, minlength=len(theirs))
    if not counts.all():
        never = ", ".join(name for name, count in zip(theirs, counts, strict=True) if not count)
        warnings.append(f"No synthetic image was generated of: {never}.")
    absent = np.bincount(real.labels, minlength=len(theirs)) == 0
    if (absent & (counts > 0)).any():
        names = ", ".join(name for name, missing in zip(theirs, absent & (counts > 0), strict=True) if missing)
        warnings.append(
            f"There is no real training image of: {names}; synthetic ones were generated, and nothing there is to "
            "compare them with."
        )
    return ImageSet(synthetic.images, labels, theirs, synthetic.origin), warnings


def copies_warning(synthetic: ImageSet, real: ImageSet, split: str) -> str | None:
    """A sentence where synthetic images equal real ones of a split in every pixel, else `None`."""
    known = {hashlib.sha256(image.tobytes()).digest() for image in real.images}
    copies = sum(hashlib.sha256(image.tobytes()).digest() in known for image in synthetic.images)
    if not copies:
        return None
    return (
        f"{copies} of {len(synthetic)} synthetic images equal a real {split} image in every pixel: either they are "
        "copies, or real images were given as synthetic ones."
    )


def fingerprint(images: ImageSet) -> str:
    """SHA-256 of pixels, labels and class names, for the keys of caches. As private as the images: who knows an image
    can test for it."""
    digest = hashlib.sha256(f"{images.images.shape} {images.class_names}".encode())
    digest.update(np.ascontiguousarray(images.images).tobytes())
    if images.labels is not None:
        digest.update(np.ascontiguousarray(images.labels).tobytes())
    return digest.hexdigest()
