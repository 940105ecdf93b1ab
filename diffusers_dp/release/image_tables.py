# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images and their classes in parquet, as `datasets` writes them. Reading is careful because files may come from a
stranger. Nothing here loads torch."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IntegrityError
from ..files.canonical import canonical_json
from .allow_list import dataset_index, shard_names


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

MOST_CLASSES, LONGEST_NAME = 100_000, 1_000
ROWS_AT_ONCE = 16  # rows of a stranger's file that are read before their size is checked
MORE_THAN_PIXELS = 65_536  # bytes that a PNG file may have in addition to twice those of its pixels
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


def load_images(name: str, folder: Path) -> "datasets.Dataset":
    """Loads the images of a release.

    Its files may come from a stranger. Rows that contain a path or address instead of an image are refused. So are
    files that unpack to more than the images in `model_index.json`, and pictures of another size.

    Args:
        name (`str`): Name of the release, for the message.
        folder (`Path`): Folder of the release.

    Raises:
        IntegrityError: The files were not written by this library.
    """
    import datasets
    import pyarrow as pa

    index = dataset_index(folder)
    try:
        if index is None:
            raise ValueError
        names = _class_names(index["class_names"])
        number, shape = _whole(index["num_images"]), tuple(_whole(side) for side in index["image_shape"])
        batches: list[pa.RecordBatch] = []
        for shard in shard_names(index["num_shards"]):
            batches += _read_shard(folder / shard, shape, names is not None, number - sum(map(len, batches)))
        table = pa.Table.from_batches(batches)
        if len(table) != number:
            raise ValueError
        features: dict[str, Any] = {"image": datasets.Image()}
        if names is not None:
            label = table.column("label").to_numpy()
            if len(label) and not (0 <= label.min() and label.max() < len(names)):
                raise ValueError
            features["label"] = datasets.ClassLabel(names=names)
        described = table.replace_schema_metadata(datasets.Features(features).arrow_schema.metadata)
        return datasets.Dataset(datasets.table.InMemoryTable(described))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError, pa.ArrowException):
        raise IntegrityError(f"'{name}' was not loaded: it holds no images of this library.") from None


def _read_shard(path: Path, shape: tuple[int, ...], labelled: bool, most: int) -> "list[pa.RecordBatch]":
    """Reads at most `most` rows of a file, a few at a time. A column that repeats one value is small in the file, and
    a picture may claim a large size. Both are bounded before they are unpacked.

    Raises `ValueError` for other contents.
    """
    from pyarrow import parquet

    largest = 2 * shape[0] * shape[1] * shape[2] + MORE_THAN_PIXELS
    with parquet.ParquetFile(path) as file:
        about, found = file.metadata, file.schema_arrow
        packed = {
            about.row_group(group).column(column).compression
            for group in range(about.num_row_groups)
            for column in range(about.num_columns)
        }
        as_written = image_table([], [] if labelled else None, [] if labelled else None).schema
        if not found.equals(as_written) or not packed <= {
            "SNAPPY",
            "UNCOMPRESSED",
        }:  # at most 21 times
            raise ValueError
        if not about.num_rows <= most or path.stat().st_size > about.num_rows * largest + MORE_THAN_PIXELS:
            raise ValueError
        batches = []
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            image = batch.column("image")
            if batch.nbytes > len(batch) * largest or image.field("path").null_count != len(batch):
                raise ValueError
            if not all(_is_png_of(picture.as_py(), shape) for picture in image.field("bytes")):
                raise ValueError
            batches.append(batch)
    return batches


def _is_png_of(picture: bytes | None, shape: tuple[int, ...]) -> bool:
    """Tells whether a file starts like the PNG file of an 8-bit image `[C, H, W]`."""
    channels, height, width = shape
    begins = PNG_SIGNATURE + struct.pack(">I4sIIBB", 13, b"IHDR", width, height, 8, PNG_COLOURS[channels])
    return picture is not None and picture.startswith(begins)


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 < number < 2**31:
        raise ValueError
    return number


def class_names_of(images: "datasets.Dataset") -> tuple[str, ...] | None:
    """Returns class names by id, or `None` without classes."""
    label = images.features.get("label")
    return None if label is None else tuple(label.names)


def _class_names(found: Any) -> list[str] | None:
    """Checks class names; raises `ValueError` if they are not a label set."""
    if found is None:
        return None
    whole = isinstance(found, list) and 0 < len(found) <= MOST_CLASSES
    if not whole or not all(isinstance(each, str) and len(each) <= LONGEST_NAME for each in found):
        raise ValueError
    return found
