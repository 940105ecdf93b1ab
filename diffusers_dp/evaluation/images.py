# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Sets of evaluated and reference images: their sources, and their conversion to a common shape."""

import atexit
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from tqdm.auto import tqdm

from ..data.decoding import MAX_IMAGE_PIXELS, Encoded, ValueRange, decode_as_it_is, decode_image, is_image
from ..data.folders import files_below, meant_split, splits_in, subfolders
from ..data.medical import is_medical
from ..data.records import DatasetRecords, DataSource, Id, ImageSource, MissingSplit, Records
from ..data.sources import DigitsSource, open_source
from ..data.values import bare, places_of
from ..errors import UsageError, fields_named
from ..methods.flag import split_list
from ..randomness.keyed_hash import digests_of, is_held_out
from ..release.components import LARGEST_SIDE, WRONG
from ..release.hub import fetch_snapshot
from ..release.image_tables import PROBABILITIES, probabilities_of


Shape = tuple[int, int, int]  # channels, height, width
#: What `datasets` cannot read in a path.
ODD = re.compile(r"::|://|[$*?\[]")
#: Files that make a folder a data set of tables, which is no folder of class folders.
TABLES = (".parquet", ".arrow", ".tar", ".zip", ".csv", ".jsonl", "dataset_dict.json", "state.json")
#: Bytes that a stranger's pictures may be decoded to, beside so many times those of their files.
DECODED, TIMES = 2**27, 200
UNCOUNTED = "{desc}: {elapsed}"  # a progress bar over private images: how many there are is not for the terminal


@dataclass(frozen=True)
class ImageSet:
    """8-bit images in memory, with their labels.

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): Images, C is 1 or 3.
        labels (`np.ndarray` of int64, shape `[N]`, *optional*): Indices of `class_names`.
        class_names (`tuple[str, ...]`, *optional*): Names of all classes, including those without images.
        origin (`dict`): Origin of the images, for the report: JSON values, no path of this machine.
        ids (`np.ndarray` of `DIGEST`, shape `[N]`, *optional*): Digests of the ids, as training hashes them.
        ids_are (`str`): What an id is, see `ImageSource.ids`.
        probabilities (`np.ndarray` of float32, shape `[N, classes]`, *optional*): Soft labels, as a judge gave them.
        own_names (`tuple[str, ...]`, *optional*): Name of each class in the data set itself, where flags rename it.
    """

    images: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    ids: np.ndarray | None = None
    ids_are: str = "row"
    probabilities: np.ndarray | None = None
    own_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes in the data set itself."""
        return self.own_names or self.class_names or ()

    def subset(self, index: np.ndarray) -> "ImageSet":
        """Selects the images at `index`, in that order."""
        arrays = {name: getattr(self, name) for name in ("labels", "ids", "probabilities")}
        chosen: dict[str, Any] = {name: None if array is None else array[index] for name, array in arrays.items()}
        return replace(self, images=self.images[index], **chosen)


#: Flags of images that training read, or would read: as training reads them.
OF_TRAINING = ("--real", "--members", "--holdout")


@dataclass(frozen=True)
class Source:
    """A data set named by flags, read split by split.

    Args:
        flag (`str`): Flag that names it, for messages.
        name (`str`, *optional*): Hub id or folder for `datasets.load_dataset`; `None`: the embedded digits.
        image_column, label_column, class_names, unit_column, key_column: See the flags of training; `class_names` is
            comma-separated. An image without an id in such a column counts as unreadable.
        split_flag (`str`): The flag that names the split, for messages.
        facts (`dict`, *optional*): What the report says of the images, where that is not the name of the data set.
        counted (`bool`, defaults to `False`): Whether the terminal may show how many there are.
        value_range (`tuple[float, float]`, *optional*): As in `decode_image`.
        is_untrusted (`bool`, defaults to `False`): Whether somebody else made them: see `data.untrusted_tables`.
        trained_on (`dict`): What a receipt says of the images, which counts where flags say nothing: `class_names`,
            `image_column`, `label_column`, `delimiter`, `image_suffixes`.
    """

    flag: str
    name: str | None
    image_column: str | None = None
    label_column: str | None = None
    class_names: str | None = None
    unit_column: str | None = None
    key_column: str | None = None
    split_flag: str = "--train_split"
    facts: dict[str, Any] | None = None
    counted: bool = False
    value_range: ValueRange | None = None
    is_untrusted: bool = False
    trained_on: dict[str, Any] = field(default_factory=dict)

    def shape(self, split: str, cache_dir: Path) -> Shape:
        """Returns (channels, height, width) of the first readable image.

        Raises:
            UsageError: The data set, split or column does not exist, or no image is readable.
        """
        with self._own_flags():
            source = self._open(split)
            for encoded, *_ in source.records(source.class_names(), Path(_plain(str(cache_dir)))):
                if (image := self._decode(encoded)) is not None:
                    channels, height, width = image.shape
                    return channels, height, width
        raise UsageError(f"{self._words(split)} holds no image that can be read; give another data set.")

    def load(
        self, split: str, shape: Shape, *, resize: bool, cache_dir: Path, limit: int | None = None, seed: int = 0
    ) -> ImageSet:
        """Loads all readable images, with their labels if there are any. An image without its label or its id counts
        as unreadable.

        Args:
            split (`str`): Name of the split; `train` or `test` for the embedded digits.
            shape (`tuple[int, int, int]`): Required shape of the images.
            resize (`bool`): Whether to convert images of other shapes (see `fit_to_shape`) instead of refusing them.
            cache_dir (`Path`): Folder for the cache of `datasets`, as private as the images.
            limit (`int`, *optional*): Maximum number of images. They are drawn without replacement because a folder
                may be sorted by class.
            seed (`int`, defaults to 0): Seed of the draw.

        Raises:
            UsageError: The data set, split or column does not exist, no image is readable, or one has another size.
        """
        kept: list[tuple[int, np.ndarray, int | None, Id]] = []  # position, image, label, id
        draws, readable, position, left = np.random.default_rng(seed), 0, -1, DECODED
        with self._own_flags():
            source = self._open(split)
            names, form = source.class_names(), None if self.counted else UNCOUNTED
            records = source.records(names, Path(_plain(str(cache_dir))))
            soft = None if names is None or self.flag in OF_TRAINING else self._soft_labels(records, split)
            for position, (encoded, label, identifier) in enumerate(
                tqdm(records, f"Reading {self.flag[2:]} ({split})", unit="image", bar_format=form)
            ):
                image = self._decode(encoded, shape if resize and not self.is_untrusted else None)
                left += TIMES * _size(encoded) - (0 if image is None else image.nbytes)
                if self.is_untrusted and left < 0:
                    raise UsageError(f"{self._words(split)} would unpack to far more than its files hold.")
                if image is None or identifier is None or (names is not None and label is None):
                    continue
                if image.shape != shape and not resize:
                    raise UsageError(
                        f"{self._words(split)} holds an image of {_shape_words(image.shape)} where "
                        f"{_shape_words(shape)} are compared; --resize makes it fit."
                    )
                image, readable = fit_to_shape(image, shape), readable + 1
                if limit is None or len(kept) < limit:
                    kept.append((position, image, label, identifier))
                elif (place := draws.integers(readable)) < limit:  # a reservoir (Vitter 1985, Algorithm R)
                    kept[place] = position, image, label, identifier
        if not kept:
            raise UsageError(f"{self._words(split)} holds no image that can be read; give another data set.")
        places, images, labels, ids = zip(*sorted(kept, key=lambda record: record[0]), strict=True)
        origin = {
            **(self.facts or {"dataset": self._public_name(), "split": split}),
            "unreadable": position + 1 - readable,
        }
        beside = getattr(source, "folders_are_classes", False) and source.descriptions()
        if beside and any(True for _ in source.labels(cache_dir)):
            origin["labels"] = "of a table, not of the class folders"
        if len(kept) < readable:
            origin["drawn"] = f"{len(kept)} of {readable} images at random, without replacement, by seed {seed}"
        return ImageSet(
            np.stack(images), None if names is None else np.array(labels, dtype=np.int64), names, origin,
            digests_of(ids), source.ids, None if soft is None else soft[list(places)], own_names(records),
        )  # fmt: skip

    def _soft_labels(self, records: Records, split: str) -> np.ndarray | None:
        """The column of a judge, float32 `[n, classes]`, where there is one beside a `ClassLabel`."""
        if not isinstance(records, DatasetRecords) or PROBABILITIES not in records.dataset.features:
            return None
        places, column = records.places, records.dataset.select_columns([PROBABILITIES]).with_format("arrow")[:]
        if places is None:
            raise UsageError(
                f"{self._words(split)} holds a column {PROBABILITIES} of classes that no ClassLabel names; write "
                f"'{records.label_column}' as one, or leave the column out."
            )
        soft = np.zeros((len(records), len(records.class_names or ())), np.float32)
        try:
            soft[:, places] = probabilities_of(column[PROBABILITIES], len(places))
        except (*WRONG, pa.ArrowException):
            raise UsageError(
                f"{self._words(split)} holds a column {PROBABILITIES} that is no probability of each class; leave it "
                "out."
            ) from None
        return soft

    def _decode(self, encoded: Encoded, shape: Shape | None = None) -> np.ndarray | None:
        """As training decodes. A declared range is that of the real images, so that others may have 8 bits, too. Of a
        stranger, pictures alone: pydicom inflates without a limit."""
        if self.is_untrusted and isinstance(encoded, bytes | Path) and is_medical(encoded):
            return None
        most = min(MAX_IMAGE_PIXELS, LARGEST_SIDE**2) if self.is_untrusted else MAX_IMAGE_PIXELS
        for ends in (self.value_range,) if self.flag in OF_TRAINING else (self.value_range, None):
            image = decode_as_it_is(encoded, most, ends) if shape is None else decode_image(encoded, shape, most, ends)
            if image is not None:
                return image
        return None

    def _open(self, split: str) -> ImageSource:
        """The source that flags describe, and where they do not, the receipt."""
        if self.name is None:
            return DigitsSource(split)
        known, suffixes = self.trained_on, self.trained_on.get("image_suffixes")
        suffixes = None if suffixes is None else tuple(suffixes)
        name = str(folder_of(self.flag, self.name)) if self.is_untrusted else self.name
        data = DataSource(
            dataset_name=_plain(name), train_split=split,
            own_files=self.flag not in OF_TRAINING, is_untrusted=self.is_untrusted, unit_column=self.unit_column,
            key_column=self.key_column, image_column=self.image_column or known.get("image_column", "image"),
            label_column=self.label_column or known.get("label_column"),
            delimiter=known.get("delimiter", ","), value_range=self.value_range,
            class_names=None if self.class_names is None else split_list(self.class_names),
        )  # fmt: skip
        guessed = known.get("class_names") if self.class_names is None else None
        declared = data if guessed is None else replace(data, class_names=tuple(guessed))
        root = split_folder(self.name, split, suffixes) if self.flag in OF_TRAINING else None
        if root is not None and self.unit_column is None and self.key_column is None:
            return open_source(replace(declared, dataset_name=None, train_data_dir=str(root), image_suffixes=suffixes))
        try:
            source = open_source(declared)
            source.class_names()
        except UsageError as error:
            if guessed is None or error.field not in ("class_names", "label_column"):
                raise
            source = open_source(data)  # it tells its own classes
        return source

    def _own_flags(self) -> AbstractContextManager[None]:
        """Errors of the data name the flags of an evaluation."""
        own = ("dataset_name", "train_data_dir", "image_suffixes")
        return fields_named(dict.fromkeys(own, self.flag[2:]) | {"train_split": self.split_flag[2:]})

    def _public_name(self) -> str:
        """Returns the name without local folders."""
        if self.name is None:
            return "scikit-learn digits"
        return Path(self.name).resolve().name if Path(os.path.expanduser(self.name)).exists() else self.name

    def _words(self, split: str) -> str:
        return f"{self.flag} {self.name or 'digits'} ({split})"


def own_names(records: Records) -> tuple[str, ...] | None:
    """The name of each class in the `ClassLabel`; the declared one of a class that it lacks."""
    if not isinstance(records, DatasetRecords) or records.places is None:
        return None
    own = dict(zip(records.places, records.dataset.features[records.label_column].names))
    return tuple(own.get(place, name) for place, name in enumerate(records.class_names or ()))


def folder_of(flag: str, name: str) -> Path:
    """Where a data set of somebody else lies on this machine: it is fetched whole before it is looked at.

    Raises:
        UsageError: There is none of that name.
    """
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):  # `Path.is_dir` raises where a name is too long
        return folder
    if os.path.isfile(folder):
        raise UsageError(f"{flag} {name} is a file; give a folder of images, or a Hub id.")
    return fetch_snapshot(name, kind="a data set", subject=f"{flag} {name}", repo_types=("dataset",))


@cache
def _plain(name: str) -> str:
    """The same name, or, for this process, a link to a folder whose path `datasets` would split, or take for a pattern
    or a variable."""
    if not ODD.search(name) or not os.path.isdir(name):
        return name
    folder = tempfile.mkdtemp(prefix="diffusers-dp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "images").symlink_to(Path(name).resolve())
    return str(Path(folder, "images"))


def split_folder(name: str, split: str, suffixes: tuple[str, ...] | None) -> Path | None:
    """
    Finds the folder whose folders are the classes, as training names it.

    Args:
        name (`str`): Folder, whose folders are classes, or are splits that hold them.
        split (`str`): Name of the split; without folders of splits there is `train` alone.
        suffixes (tuple of `str`, *optional*): Suffixes of images.

    Returns:
        `Path`, or `None` where it is no folder of that kind.

    Raises:
        MissingSplit: No folder is called as the split is, or several are.
    """
    root = Path(os.path.expanduser(name))
    if not os.path.isdir(root) or any(file.name.lower().endswith(TABLES) for file in files_below(root)):
        return None
    splits = {path.name: path for path in splits_in(root)} or {"train": root}
    found = meant_split(split, splits)
    if found is None:
        raise MissingSplit(f"'{split}' does not exist; there is: {', '.join(splits)}.", field="train_split")
    folder = splits[found]
    holds_images = any(is_image(path, suffixes) for path in folder.iterdir() if path.is_file())
    return None if holds_images or not subfolders(folder) else folder


def _size(encoded: bytes | Path | Image.Image | None) -> int:
    """Bytes of an encoded image."""
    if isinstance(encoded, bytes):
        return len(encoded)
    return encoded.stat().st_size if isinstance(encoded, Path) and encoded.is_file() else 0


def fit_to_shape(image: np.ndarray, shape: Shape) -> np.ndarray:
    """Converts an image to another shape, as in training and in DPImageBench: resizes the shorter side by Lanczos and
    crops the centre. Colours become grey by .299 R + .587 G + .114 B; grey channels are repeated.

    Args:
        image (`np.ndarray` of uint8, shape `[C, H, W]`): Image, C is 1 or 3.
        shape (`tuple[int, int, int]`): Target (channels, height, width).
    """
    if image.shape == shape:
        return image
    picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    fitted = decode_image(picture, shape)
    assert fitted is not None  # an array can always be read
    return fitted


def common_shape(
    synthetic: Shape, real: Shape, *, resize: bool, flags: tuple[str, str] = ("--images", "--real")
) -> Shape:
    """Returns the shape for comparing both: the size of the synthetic images, and grey if either is grey.

    Raises:
        UsageError: The shapes differ, and `resize` is not set.
    """
    if synthetic != real and not resize:
        raise UsageError(
            f"{flags[0]} holds images of {_shape_words(synthetic)} and {flags[1]} of {_shape_words(real)}; --resize "
            "makes them fit."
        )
    return min(synthetic[0], real[0]), *synthetic[1:]


def _shape_words(shape: Sequence[int]) -> str:
    return f"{shape[2]}x{shape[1]} pixels and {shape[0]} channel{'s' if shape[0] > 1 else ''}"


def validation_split(images: ImageSet, size: int, num_train: int | None = None) -> tuple[ImageSet, ImageSet]:
    """Splits training and validation images as `--validation_size` does in training: by the ids of images or of whole
    units. The images held out here are therefore those on which a generator was not trained. (DPImageBench draws
    others, by torch's `random_split`.)

    Args:
        images (`ImageSet`): Whole split from `Source.load`.
        size (`int`): Value of `--validation_size`.
        num_train (`int`, *optional*): N, as it was declared for training; defaults to what `size` leaves.

    Raises:
        UsageError: One of the parts would be empty, or there are more images than declared.
    """
    assert images.ids is not None  # set by Source.load
    count = len(images) + images.origin["unreadable"]
    capacity = count if num_train is None else num_train + size
    if count > capacity:
        raise UsageError(
            f"--num_train_images {num_train} and --validation_size {size} are fewer than the real images; give those "
            "of training."
        )
    if size >= capacity:
        raise UsageError(f"--validation_size {size} leaves none of the real images; lower it.")
    held_out = is_held_out(images.ids, size, capacity)
    if held_out.all() or not held_out.any():
        raise UsageError(f"--validation_size {size} leaves no readable image on one side; give another number.")
    return images.subset(np.flatnonzero(~held_out)), images.subset(np.flatnonzero(held_out))


def with_classes_of(synthetic: ImageSet, real: ImageSet) -> tuple[ImageSet, list[str]]:
    """Maps the labels of synthetic images to the real images' classes; returns the images and warnings.

    Classes are matched by name. If no name is in both sets and their numbers are equal, they are matched by position.

    Raises:
        UsageError: The classes cannot be matched.
    """
    if synthetic.labels is None or real.labels is None:
        sets = {"synthetic": synthetic, "real": real}
        missing = " and ".join(name for name, each in sets.items() if each.labels is None)
        return ImageSet(synthetic.images, None, None, synthetic.origin), [
            f"The {missing} images have no labels: utility and features of a classifier are left out."
        ]
    ours, theirs = synthetic.class_names or (), real.class_names or ()
    warnings, found = [], places_of(ours, theirs)
    if set(synthetic.names) & set(real.names) and places_of(synthetic.names, real.names) != found:
        ours, theirs, found = synthetic.names, real.names, None
    if found is None:
        raise UsageError(
            f"The synthetic images have the classes {', '.join(ours)}, the real ones {', '.join(theirs)}; give "
            "these names as --class_names."
        )
    if not set(map(bare, ours)) & set(map(bare, theirs)):
        warnings.append(
            "The classes have other names in the synthetic than in the real images; they were matched by position."
        )
    places = np.array(found)
    labels, soft = places[synthetic.labels], None
    if synthetic.probabilities is not None:
        soft = np.zeros((len(labels), len(theirs)), synthetic.probabilities.dtype)
        soft[:, places] = synthetic.probabilities
    if never := [name for i, name in enumerate(theirs) if i not in labels]:
        warnings.append(f"No synthetic image was generated of: {', '.join(never)}.")
    return ImageSet(synthetic.images, labels, theirs, synthetic.origin, probabilities=soft), warnings


def copies_warning(synthetic: ImageSet, real: ImageSet, split: str) -> str | None:
    """Returns a warning if synthetic images equal real ones of a split in every pixel, else `None`."""
    copies = count_common(synthetic, real)
    if not copies:
        return None
    return (
        f"{copies} of {len(synthetic)} synthetic images equal a real {split} image in every pixel: either they are "
        "copies, or real images were given as synthetic ones."
    )


def count_common(images: ImageSet, others: ImageSet) -> int:
    """Counts the images that equal one of the others in every pixel."""
    known = {hashlib.sha256(image.tobytes()).digest() for image in others.images}
    return sum(hashlib.sha256(image.tobytes()).digest() in known for image in images.images)


def hash_images(images: ImageSet) -> str:
    """Computes the SHA-256 of pixels, labels and class names, for cache keys. It is as private as the images, because
    somebody who has an image can test for it."""
    digest = hashlib.sha256(f"{images.images.shape} {images.class_names}".encode())
    digest.update(np.ascontiguousarray(images.images).tobytes())
    for array in (images.labels, images.ids, images.probabilities):
        if array is not None:
            digest.update(array.tobytes())
    return digest.hexdigest()
