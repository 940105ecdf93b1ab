# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images and their classes in parquet, as `datasets` writes them. Reading is careful because files may come from a
stranger. Nothing here loads torch."""

import io
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.untrusted_tables import MOST_ROWS, batches_of
from ..errors import IntegrityError
from ..files.canonical import canonical_json
from ..files.untrusted_files import is_own, regular_size
from .allow_list import dataset_index, shard_names
from .components import LARGEST_SIDE, LONGEST_NAME, MOST_CLASSES, WRONG


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    from PIL import Image

PARAMETERS_NAME = "sampling.json"  # what `diffusers-dp sample` was asked for, beside its images
BATCHES_IN_A_TABLE, ROW_GROUP = 256, 100
MORE_THAN_PIXELS = 65_536  # bytes that a PNG file may have beyond twice those of its pixels
Shape = tuple[int, int, int]  # channels, height, width
PNG_SIGNATURE, PNG_COLOURS = b"\x89PNG\r\n\x1a\n", {1: 0, 3: 2}  # colour type by number of channels


def image_table(
    pictures: Sequence[bytes], labels: Sequence[int] | None, class_names: Sequence[str] | None
) -> "pa.Table":
    """Builds a table of PNG files and class ids as `datasets` does, with `Image` and `ClassLabel`."""
    import pyarrow as pa

    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns: dict[str, pa.Array] = {
        "image": pa.array([{"bytes": picture, "path": None} for picture in pictures], image_type)
    }
    features: dict[str, object] = {"image": {"_type": "Image"}}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.int64())
        features["label"] = {"_type": "ClassLabel", "names": list(class_names or ())}
    metadata = {"huggingface": canonical_json({"info": {"features": features}})}  # types for `datasets`
    return pa.table(columns).replace_schema_metadata(metadata)


def write_images(
    file: "Path | io.BytesIO", pictures: Sequence[bytes], labels: Sequence[int] | None, names: Sequence[str] | None
) -> None:
    """Writes an `image_table` as parquet, without a dictionary: to a reader, repeated images would look like a
    bomb."""
    from pyarrow import parquet

    parquet.write_table(image_table(pictures, labels, names), file, use_dictionary=False, row_group_size=ROW_GROUP)


def to_png(image: "Image.Image") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="png")
    return buffer.getvalue()


def load_images(name: str, folder: Path, *, largest_side: int = LARGEST_SIDE) -> "datasets.Dataset":
    """The images of a release.

    Its files may be a stranger's: a row that names another file, or the address of one, in place of an image is
    refused. So are files that unpack to more than the images that `model_index.json` describes or than their own size
    allows, and pictures of another size.

    Args:
        name (`str`): Name of the release, for the message.
        folder (`Path`): Folder of the release.
        largest_side (`int`): Pixels of an image, at most.

    Raises:
        IntegrityError: The files were not written by this library.
    """
    import pyarrow as pa

    try:
        names, number, shape = _described(folder, largest_side)
        index = dataset_index(folder)
        assert index is not None  # it was described
        paths = [folder / shard for shard in shard_names(index["num_shards"])]
        batches = _read(folder, paths, shape, names is not None, number)
        if sum(map(len, batches)) != number:
            raise ValueError
        return _data_set(batches, names)
    except (*WRONG, pa.ArrowException):
        raise IntegrityError(f"'{name}' was not loaded: it holds no images of this library.") from None


def load_sampled(name: str, folder: Path) -> "datasets.Dataset":
    """The images that `diffusers-dp sample` drew, whose classes and size their own files tell.

    Args:
        name (`str`): Name of the folder, for the message.
        folder (`Path`): With `PARAMETERS_NAME`.

    Raises:
        IntegrityError: As `load_images`.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        paths = sorted(folder.glob("data/train-*.parquet"))
        if not paths or not is_own(folder, paths[0]) or not regular_size(paths[0]):
            raise ValueError
        schema = parquet.read_schema(paths[0])
        told = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = _class_names(told["label"]["names"] if "label" in told else None)
        first = next(batches_of(paths[:1]))["image"][0]["bytes"].as_py()
        channels = {colour: number for number, colour in PNG_COLOURS.items()}[first[25]]
        shape = channels, int.from_bytes(first[20:24], "big"), int.from_bytes(first[16:20], "big")
        return _data_set(_read(folder, paths, _bounded(shape, LARGEST_SIDE), names is not None, MOST_ROWS), names)
    except (*WRONG, StopIteration, pa.ArrowException):
        raise IntegrityError(f"'{name}' was not loaded: it holds no images of this library.") from None


def open_images(name: str, folder: Path) -> "datasets.Dataset | None":
    """The images of a release, or those of `diffusers-dp sample`; `None` of another folder.

    Raises:
        IntegrityError: As `load_images`.
    """
    if dataset_index(folder) is not None:
        return load_images(name, folder)
    return load_sampled(name, folder) if os.path.lexists(folder / PARAMETERS_NAME) else None


def described_classes(name: str, folder: Path, *, largest_side: int, most_classes: int) -> tuple[str, ...] | None:
    """The classes of a release of images, as `model_index.json` names them; none of its images is read.

    Raises:
        IntegrityError: It describes no images of this library, or too large ones, or too many classes.
    """
    try:
        names, _, _ = _described(folder, largest_side)
        if names is not None and len(names) > most_classes:
            raise ValueError
    except WRONG:
        raise IntegrityError(
            f"'{name}' is not opened: it describes no images of up to {largest_side} pixels a side and "
            f"{most_classes:,} classes."
        ) from None
    return None if names is None else tuple(names)


def _described(folder: Path, largest_side: int) -> tuple[list[str] | None, int, Shape]:
    """Classes, number and shape of the images, as the index has them. Raises one of `WRONG`."""
    index = dataset_index(folder)
    if index is None:
        raise ValueError
    shape = index["image_shape"]
    if not isinstance(shape, list) or len(shape) != 3:
        raise ValueError
    return _class_names(index["class_names"]), _whole(index["num_images"], MOST_ROWS), _bounded(shape, largest_side)


def _bounded(shape: Sequence[Any], largest_side: int) -> Shape:
    channels, height, width = shape
    if channels not in PNG_COLOURS:
        raise ValueError
    return _whole(channels, 3), _whole(height, largest_side), _whole(width, largest_side)


def _data_set(batches: "list[pa.Table]", names: list[str] | None) -> "datasets.Dataset":
    """With labels that are classes. Raises `ValueError` where some are none."""
    import datasets
    import pyarrow as pa

    table = pa.concat_tables(batches)
    features: dict[str, Any] = {"image": datasets.Image()}
    if names is not None:
        label = table.column("label").to_numpy()
        if len(label) and not (0 <= label.min() and label.max() < len(names)):
            raise ValueError
        features["label"] = datasets.ClassLabel(names=names)
    described = table.replace_schema_metadata(datasets.Features(features).arrow_schema.metadata)
    return datasets.Dataset(datasets.table.InMemoryTable(described))


def _read(folder: Path, paths: Sequence[Path], shape: Shape, labelled: bool, most: int) -> "list[pa.Table]":
    """At most so many rows, a few at a time. A picture may say to be larger than its bytes: both are bounded before
    they are unpacked.

    Raises `ValueError` where a file holds something else, or lies elsewhere.
    """
    import pyarrow as pa

    if not all(is_own(folder, path) for path in paths):
        raise ValueError
    largest = 2 * shape[0] * shape[1] * shape[2] + MORE_THAN_PIXELS
    as_written = image_table([], [] if labelled else None, [] if labelled else None).schema
    tables: list[pa.Table] = []
    batches: list[pa.RecordBatch] = []
    for batch in batches_of(paths):
        image = batch.column(0)
        if not batch.schema.equals(as_written) or batch.nbytes > len(batch) * largest:
            raise ValueError
        if image.field("path").null_count != len(batch):
            raise ValueError
        if not all(_is_png_of(picture.as_py(), shape) for picture in image.field("bytes")):
            raise ValueError
        most -= len(batch)
        if most < 0:
            raise ValueError
        batches.append(batch)
        if len(batches) == BATCHES_IN_A_TABLE:  # each takes some memory beside its rows
            tables, batches = [*tables, pa.Table.from_batches(batches).combine_chunks()], []
    return [*tables, pa.Table.from_batches(batches, as_written)]


def _is_png_of(picture: bytes | None, shape: tuple[int, ...]) -> bool:
    """Tells whether a file starts like the PNG file of an 8-bit image `[C, H, W]`."""
    channels, height, width = shape
    begins = PNG_SIGNATURE + struct.pack(">I4sIIBB", 13, b"IHDR", width, height, 8, PNG_COLOURS[channels])
    return picture is not None and picture.startswith(begins)


def _whole(number: Any, most: int) -> int:
    if type(number) is not int or not 0 < number <= most:
        raise ValueError
    return number


def _class_names(found: Any) -> list[str] | None:
    """Checks class names; raises `ValueError` if they are not a label set."""
    if found is None:
        return None
    whole = isinstance(found, list) and 0 < len(found) <= MOST_CLASSES
    if not whole or not all(isinstance(each, str) and len(each) <= LONGEST_NAME for each in found):
        raise ValueError
    return found
