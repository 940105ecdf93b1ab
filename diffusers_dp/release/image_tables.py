# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images and their classes in parquet, as `datasets` writes them. Reading is careful because files may come from a
stranger. Nothing here loads torch."""

import io
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.untrusted_tables import MOST_ROWS, batches_of
from ..errors import IntegrityError
from ..files.canonical import canonical_json
from ..files.untrusted_files import is_own
from ..verify import check_index
from .allow_list import JUDGED, dataset_index, shard_names
from .components import LARGEST_SIDE, MOST_CLASSES, WRONG, WrongModel


if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from PIL import Image

BATCHES_IN_A_TABLE, ROW_GROUP = 256, 100
MORE_THAN_PIXELS = 65_536  # bytes that a PNG file may have beyond twice those of its pixels
PROBABILITIES = "label_probabilities"  # a column: float16, of each class, as a judge has it
ABOUT_ONE = 0.02  # how far their sum may be from 1
Shape = tuple[int, int, int]  # channels, height, width
PNG_SIGNATURE, PNG_COLOURS = b"\x89PNG\r\n\x1a\n", {1: 0, 3: 2}  # colour type by number of channels


def image_table(
    pictures: Sequence[bytes], labels: Sequence[int] | None, class_names: Sequence[str] | None,
    probabilities: "np.ndarray | None" = None,
) -> "pa.Table":  # fmt: skip
    """Builds a table of PNG files and class ids as `datasets` does, with `Image` and `ClassLabel`, and of
    probabilities `[n, classes]` as float16."""
    import pyarrow as pa

    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns: dict[str, pa.Array] = {
        "image": pa.array([{"bytes": picture, "path": None} for picture in pictures], image_type)
    }
    features: dict[str, object] = {"image": {"_type": "Image"}}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.int64())
        features["label"] = {"_type": "ClassLabel", "names": list(class_names or ())}
    if probabilities is not None:
        number, flat = len(class_names or ()), probabilities.astype("float16").ravel()
        columns[PROBABILITIES] = pa.FixedSizeListArray.from_arrays(pa.array(flat), number)
        features[PROBABILITIES] = {
            "_type": "List", "feature": {"_type": "Value", "dtype": "float16"}, "length": number,
        }  # fmt: skip
    metadata = {"huggingface": canonical_json({"info": {"features": features}})}  # types for `datasets`
    return pa.table(columns).replace_schema_metadata(metadata)


def write_images(
    file: "Path | io.BytesIO", pictures: Sequence[bytes], labels: Sequence[int] | None, names: Sequence[str] | None,
    probabilities: "np.ndarray | None" = None,
) -> None:  # fmt: skip
    """Writes an `image_table` as parquet, without a dictionary: to a reader, repeated images would look like a
    bomb."""
    from pyarrow import parquet

    parquet.write_table(
        image_table(pictures, labels, names, probabilities), file, use_dictionary=False, row_group_size=ROW_GROUP
    )


def to_png(image: "Image.Image") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="png")
    return buffer.getvalue()


def load_images(name: str, folder: Path) -> "datasets.Dataset":
    """The images of a release.

    Its files may be a stranger's: a row that names another file, or the address of one, in place of an image is
    refused. So are files that unpack to more than the images that `model_index.json` describes or than their own size
    allows, and pictures of another size.

    Args:
        name (`str`): Name of the release, for the message.
        folder (`Path`): Folder of the release.

    Raises:
        IntegrityError: The files were not written by this library.
    """
    import datasets
    import numpy as np
    import pyarrow as pa

    try:
        index = described(folder)
        names, number = index["class_names"], index["num_images"]
        paths = [folder / shard for shard in shard_names(index["num_shards"])]
        as_written = image_table(
            [], None if names is None else [], names, np.empty((0, len(names))) if names and JUDGED in index else None
        )
        table = pa.concat_tables(_read(folder, paths, index["image_shape"], as_written.schema, number))
        if len(table) != number:
            raise ValueError
        features: dict[str, Any] = {"image": datasets.Image()}
        if names is not None:
            labels = table.column("label").to_numpy()
            if not ((labels >= 0) & (labels < len(names))).all():
                raise ValueError
            features["label"] = datasets.ClassLabel(names=names)
            if PROBABILITIES in table.column_names:
                features[PROBABILITIES] = datasets.List(datasets.Value("float16"), length=len(names))
                probabilities_of(table.column(PROBABILITIES), len(names))
    except (*WRONG, WrongModel, pa.ArrowException):
        raise IntegrityError(f"'{name}' was not loaded: it holds no images of this library.") from None
    stated = table.replace_schema_metadata(datasets.Features(features).arrow_schema.metadata)
    return datasets.Dataset(datasets.table.InMemoryTable(stated))


def probabilities_of(column: "pa.ChunkedArray", num_classes: int) -> "np.ndarray":
    """A column of lists as float32 `[n, classes]`. Raises an error of `WRONG`, or of Arrow, unless each list holds
    `num_classes` numbers that sum up to 1."""
    import numpy as np
    import pyarrow.compute as pc

    found = column.combine_chunks()
    flat = found.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    lengths = pc.list_value_length(found).unique().to_pylist()
    if found.null_count or lengths not in ([], [num_classes]) or not (flat >= 0).all():
        raise ValueError
    rows = flat.reshape(-1, num_classes)
    if not (np.abs(rows.sum(1) - 1) < ABOUT_ONE).all():
        raise ValueError
    return rows


def described(folder: Path, largest_side: int = LARGEST_SIDE, most_classes: int = MOST_CLASSES) -> dict[str, Any]:
    """The `model_index.json` of a release of images, checked. Raises `WrongModel` if the images are larger, or the
    classes more."""
    index = dataset_index(folder)
    if index is None or any(check_index(folder)) or not {"class_names", "image_shape", "num_images"} <= set(index):
        raise WrongModel("it describes no images of this library")
    names, (channels, *sides) = index["class_names"], index["image_shape"]
    if channels not in PNG_COLOURS or max(sides) > largest_side or index["num_images"] > MOST_ROWS:
        raise WrongModel(f"it describes no images of up to {largest_side} pixels a side")
    if names is not None and not 0 < len(names) <= most_classes:
        raise WrongModel(f"it has no classes, or more than {most_classes:,}")
    return index


def _read(
    folder: Path, paths: Sequence[Path], shape: Sequence[int], as_written: "pa.Schema", most: int
) -> "list[pa.Table]":
    """At most this many rows, a few at a time. A picture may say to be larger than its bytes: both are bounded before
    they are unpacked.

    Raises `ValueError` where a file holds something else, or lies elsewhere.
    """
    import pyarrow as pa

    if not all(is_own(folder, path) for path in paths):
        raise ValueError
    largest = 2 * math.prod(shape) + MORE_THAN_PIXELS
    tables: list[pa.Table] = []
    batches: list[pa.RecordBatch] = []
    for batch in batches_of(paths):
        image = batch.column(0)
        if not batch.schema.equals(as_written) or batch.nbytes > len(batch) * largest:
            raise ValueError
        if image.field("path").null_count != len(batch):  # a path would be read
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


def _is_png_of(picture: bytes | None, shape: Sequence[int]) -> bool:
    """Tells whether a file starts like the PNG file of an 8-bit image `[C, H, W]`."""
    channels, height, width = shape
    begins = PNG_SIGNATURE + struct.pack(">I4sIIBB", 13, b"IHDR", width, height, 8, PNG_COLOURS[channels])
    return picture is not None and picture.startswith(begins)
