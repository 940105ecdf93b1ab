"""From flags to images: first the public facts, which no image decides, then uint8 arrays for the door."""

import hashlib
import json
import math
import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..distributed.launcher import cores
from ..errors import UsageError
from ..randomness.keyed_hash import DIGEST, digests_of, has_id, is_held_out
from .cache import damaged, fingerprint, new_cache, open_cache
from .decoding_workers import map_in_processes
from .parts import Decoder, part_length, parts_of
from .records import DataSource, ImageSource, Records
from .sources import DigitsSource, holds_one_image, open_source


FOLDER, READING = "images", "reading.json"  # of the cache
# A process needs a second to start; fewer parts of the images are decoded before it has.
PARTS_OF_A_PROCESS = 4


@dataclass(frozen=True)
class PublicFacts:
    """
    What may be known of the images by everybody.

    Args:
        num_images (`int`): N, the declared number of images to train on. Rates and divisors follow from it.
        image_shape (`tuple[int, int, int]`): (channels, height, width).
        class_names (`tuple[str, ...]`, *optional*): The label set, `None` for unlabelled images.
        declared_units (`int`, *optional*): The declared number of units, where a unit is not an image.
        held_out (`int`): The declared number of validation images. The images that are held out follow from their ids,
            so that there may be a few more or less.
        ids (`str`): What the id of a record is, see `ImageSource.ids`.
    """

    num_images: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...] | None
    declared_units: int | None = None
    held_out: int = 0
    ids: str = "row"

    @property
    def num_classes(self) -> int | None:
        """`None` for unlabelled images."""
        return None if self.class_names is None else len(self.class_names)

    @property
    def id2label(self) -> dict[int, str] | None:
        """The classes by their numbers; `None` for unlabelled images."""
        return None if self.class_names is None else dict(enumerate(self.class_names))

    @property
    def capacity(self) -> int:
        """The most images that there can be to train on."""
        return self.num_images + self.held_out

    @property
    def num_units(self) -> int:
        """N of the guarantee: the number of units of privacy."""
        return self.num_images if self.declared_units is None else self.declared_units


@dataclass(frozen=True)
class ImageArrays:
    """
    The private images, ready for the door.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`): n <= N images; zeros where not readable.
        labels (`np.ndarray` of int64, shape `[n]`, *optional*): Class of each image, `None` for unlabelled images.
        readable (`np.ndarray` of bool, shape `[n]`): False for an image that contributes nothing, because it or its
            label could not be read, or it has no id.
        units (`np.ndarray` of int64, shape `[n]`, *optional*): Number of each image's unit, from 0 on, where a unit is
            not an image. Only shares of processes follow from it.
        made_of (`str`, *optional*): By which `open_images` finds them again.
        ids (`np.ndarray` of `DIGEST`, shape `[n]`, *optional*): Digest of each image's id, or of that of its unit;
            unset: the id of an image is its row number.
    """

    images: np.ndarray
    labels: np.ndarray | None
    readable: np.ndarray
    units: np.ndarray | None = None
    made_of: str | None = None
    ids: np.ndarray | None = None


def public_facts(data: DataSource) -> PublicFacts:
    """
    Finds out what is public, from flags and metadata, without reading an image or writing a file.

    A dry run with a declared number of images does not even look at the metadata.

    Args:
        data (`DataSource`): Which images.

    Returns:
        `PublicFacts`: The facts.

    Raises:
        `UsageError`: A dataset, split or column is missing or unknown, N or the label set cannot be known without
            reading images, or there are known to be more images than declared.
    """
    if data.declared_only and data.num_train_images is not None:
        return declared_facts(data)
    source = open_source(data)
    count = source.count()
    num_images = data.num_train_images
    if count == 0:
        raise UsageError(f"{_source_words(data)} holds no images{_suffixes(data)}; name a source that does.")
    if num_images is not None and count is not None and num_images + data.validation_size < count:
        raise UsageError(
            f"{num_images} and --validation_size {data.validation_size} together are less than the {count} images of "
            f"{_source_words(data)}; give --num_train_images {count - data.validation_size} or a larger number.",
            field="num_train_images",
        )
    if num_images is None:
        if count is None:
            raise UsageError(
                "must be given: the dataset's metadata does not tell its length.", field="num_train_images"
            )
        num_images = count - data.validation_size
        if num_images < 1:
            raise UsageError(f"{data.validation_size} leaves no image to train on; lower it.", field="validation_size")
    if source.has_unnamed_classes:
        raise UsageError("must name the classes of the column 'label', or rename that column.", field="class_names")
    names = source.class_names()
    return PublicFacts(num_images, data.image_shape, names, data.num_train_units, data.validation_size, source.ids)


def declared_facts(data: DataSource) -> PublicFacts:
    """The public facts as flags declare them, the number of images among them. No data set is looked at."""
    assert data.num_train_images is not None
    names = DigitsSource().class_names() if data.uses_digits else data.class_names
    ids = "column" if data.id_column else "row" if data.train_data_dir is None else "path"
    return PublicFacts(data.num_train_images, data.image_shape, names, data.num_train_units, data.validation_size, ids)


def load_images(data: DataSource, facts: PublicFacts, cache_dir: str | Path) -> ImageArrays:
    """
    The images, converted, resized and cropped. A damaged one stays, as zeros that contribute nothing.

    They are decoded once, by several processes, into `cache_dir`, and read from there without being
    loaded: the arrays are memory maps. Other flags, or other local files, are decoded anew. Which images are held out
    follows from their ids: a record that is missing or damaged moves no other.

    Each process holds about 16 MiB of images, and the first about 100 bytes for each image.

    Args:
        data (`DataSource`): Which images.
        facts (`PublicFacts`): Its public facts.
        cache_dir (`str` or `Path`): A private folder for decoded images and for what `datasets` caches.

    Returns:
        `ImageArrays`: The images in the order of their source, without the validation images. Read-only.

    Raises:
        `UsageError`: There is no image at all, or more than declared, or a column is missing or unknown, or a file of
            the dataset, or two records have one key, or the disk is full.
        `IntegrityError`: The cache is damaged.
    """
    source, folder = open_source(data), Path(cache_dir) / FOLDER
    made_of = fingerprint(_what_decides(data, facts, source))
    if open_cache(folder, made_of) is None:
        records = source.records(facts.class_names, Path(cache_dir))
        left_out = _left_out(data, facts, records)
        # With label, unit, id, readable. The declared number, because a message may not tell how many there are.
        num_bytes = facts.capacity * (math.prod(facts.image_shape) + 33)
        with new_cache(folder, made_of, num_bytes) as temporary:
            _decode(data, facts, records, left_out, temporary)
        _note_what_was_read(Path(cache_dir), source)
    return open_images(cache_dir, made_of)


def open_images(cache_dir: str | Path, made_of: str) -> ImageArrays:
    """
    What `load_images` decoded, in this process or another one. Nothing is decoded, and the data set is not looked at.

    Args:
        cache_dir (`str` or `Path`): As it was given to `load_images`.
        made_of (`str`): Fingerprint of the arrays that it returned.

    Raises:
        `UsageError`: They are not there.
        `IntegrityError`: The cache is damaged.
    """
    arrays = open_cache(Path(cache_dir) / FOLDER, made_of)
    if arrays is None:
        raise UsageError(
            f"{cache_dir} does not hold the images that the first process decoded: give an --output_dir on a disk "
            "that all machines of the run see."
        )
    _check_arrays(arrays, Path(cache_dir) / FOLDER)
    labels, units = arrays.get("labels"), arrays.get("units")
    return ImageArrays(arrays["images"], labels, arrays["readable"], units, made_of, arrays["ids"])


def _note_what_was_read(cache_dir: Path, source: ImageSource) -> None:
    """For those who own the images: these numbers are private, and nobody else hears of them."""
    readable = np.load(cache_dir / FOLDER / "readable.npy", mmap_mode="r")
    found = {"unreadable_images": int((~readable).sum()), "ignored_files": source.ignored()}
    (cache_dir / READING).write_text(json.dumps(found, sort_keys=True) + "\n")


def _check_arrays(arrays: dict[str, np.ndarray], folder: Path) -> None:
    """Raises `IntegrityError` where one is missing, or has not the type or the length that it was written with."""
    types = {"images": np.uint8, "readable": np.bool_, "labels": np.int64, "units": np.int64, "ids": DIGEST}
    for name in ("images", "readable", "ids", *arrays):
        found = arrays.get(name, np.empty(0))  # whose type is that of none
        fits = name in types and found.dtype == types[name] and found.ndim == (4 if name == "images" else 1)
        if not fits or len(found) != len(arrays["images"]):
            raise damaged(folder / f"{name}.npy")


def _what_decides(data: DataSource, facts: PublicFacts, source: ImageSource) -> list[Any]:
    """All that the decoded images follow from: the files of the source, or the address of their revision on the Hub,
    and the flags."""
    files = [[str(file), *size_and_time(file)] for file in [*source.files(), *source.descriptions()]]
    flags: list[Any] = [
        data.dataset_name, data.dataset_config_name, data.train_data_dir, data.train_split, data.image_column,
        data.label_column, data.unit_column, data.key_column, data.delimiter, data.validation_size, source.ids,
        data.max_image_pixels,
    ]  # fmt: skip
    if data.value_range is not None:
        flags.append(["value_range", *data.value_range])
    return [files, flags, facts.num_images, facts.image_shape, facts.class_names]


def listing_of(data: DataSource, facts: PublicFacts) -> str:
    """
    A digest of what gives the images their ids: the flags, the names and sizes of files that hold several images, and
    the content of tables beside images. Image files have their path for an id, so that they are not listed. Private,
    because it tells names.

    Args:
        data (`DataSource`): Which images.
        facts (`PublicFacts`): Its public facts.
    """
    source, root = open_source(data), Path(os.path.expanduser(data.train_data_dir or data.dataset_name or ""))
    root = root.parent if root.is_file() else root  # of one table

    def name_of(file: Path | str) -> str:
        return str(file.relative_to(root)) if isinstance(file, Path) and file.is_relative_to(root) else str(file)

    holders = (file for file in source.files() if not (isinstance(file, Path) and holds_one_image(file)))
    listed = [[name_of(file), *size_and_time(file)[:1]] for file in holders]
    # An id can be replaced by one of the same length.
    listed += [[name_of(file), hashlib.sha256(file.read_bytes()).hexdigest()] for file in source.descriptions()]
    flags = [
        data.dataset_config_name, data.train_split, data.unit_column, data.key_column, data.image_column,
        data.delimiter, facts.ids,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps([listed, flags]).encode()).hexdigest()


def size_and_time(file: Path | str) -> tuple[int, ...]:
    """In bytes and nanoseconds; empty for what is not here or cannot be read."""
    try:
        status = file.stat() if isinstance(file, Path) else None
    except OSError:
        return ()
    return () if status is None else (status.st_size, status.st_mtime_ns)


def _left_out(data: DataSource, facts: PublicFacts, records: Records) -> np.ndarray:
    """Which records are validation images, bool, shape `[n]`. Raises `UsageError` if there are too many records, or
    none, or two of one key."""
    if len(records) > facts.capacity:
        raise UsageError(
            f"{facts.num_images} is less than {_source_words(data)} holds; raise it.", field="num_train_images"
        )
    left_out = np.zeros(len(records), dtype=bool)
    can_repeat = data.unit_column is None and facts.ids != "row"
    if data.validation_size or can_repeat:
        digests = digests_of(records.ids())
        named = has_id(digests)
        if can_repeat and len(np.unique(digests[named])) < named.sum():
            what = f"--key_column '{data.key_column}'" if data.key_column else f"{_source_words(data)} by its metadata"
            raise UsageError(
                f"{what} gives two records one id; give each its own, or --unit_column where they are of one person."
            )
        left_out[named] = is_held_out(digests[named], data.validation_size, facts.capacity)
    if left_out.all():
        raise UsageError(f"{_source_words(data)} holds no images; name a source that does.")
    return left_out


def _decode(data: DataSource, facts: PublicFacts, records: Records, left_out: np.ndarray, folder: Path) -> None:
    """Writes the arrays into `folder`. Nothing that is shown meanwhile depends on how many images there are or which
    can be read."""
    num_images, length = int((~left_out).sum()), part_length(facts.image_shape)
    capacity, by_unit = facts.capacity, data.unit_column is not None
    decoder = Decoder(
        records, folder / "images.npy", num_images, facts.image_shape, labelled=facts.class_names is not None,
        max_pixels=data.max_image_pixels, value_range=data.value_range,
    )  # fmt: skip
    num_processes = min(
        cores() if data.num_workers is None else data.num_workers, capacity // (PARTS_OF_A_PROCESS * length)
    )
    decoded = map_in_processes(decoder, parts_of(left_out, facts.image_shape), num_processes)
    found = []
    with closing(decoded), tqdm(total=capacity, desc="Reading images", unit="image") as bar:
        for part in decoded:
            found.append(part)
            bar.update(min(length, capacity - bar.n))
        bar.update(capacity - bar.n)  # the bar ends at the declared number, however many images there are
    labels, readable, ids = map(np.concatenate, zip(*found))
    arrays = {"readable": readable, "ids": ids}
    if decoder.labelled:
        arrays["labels"] = labels
    numbers: dict[bytes, int] = {}  # of the units
    if by_unit:
        digests = (bytes(digest) for digest in ids)
        arrays["units"] = np.array([numbers.setdefault(each, len(numbers)) if any(each) else 0 for each in digests])
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    # How many units a hash holds out varies: with all of them, as the door counts, no data set is refused by chance.
    if len(numbers) > facts.num_units + facts.held_out:
        raise UsageError(
            f"{facts.num_units} is less than --unit_column tells apart; raise it.", field="num_train_units"
        )


def _suffixes(data: DataSource) -> str:
    if data.train_data_dir is None:
        return ""
    what = ", ".join(data.image_suffixes) if data.image_suffixes else "pictures such as .png, .jpg and .tif"
    return f" with the suffixes of --image_suffixes ({what}; .dcm and .nii have to be named)"


def _source_words(data: DataSource) -> str:
    if data.uses_digits:
        return "scikit-learn's digits"
    return "--train_data_dir" if data.train_data_dir is not None else "--dataset_name"
