# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images and their classes in parquet, as `datasets` writes them; read again with care, for they may be a stranger's.
Nothing here loads torch."""

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


def image_table(
    pictures: Sequence[bytes], labels: Sequence[int] | None, class_names: Sequence[str] | None
) -> "pa.Table":
    """PNG files and class ids as `datasets` writes them, `Image` and `ClassLabel`."""
    import pyarrow as pa

    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns: dict[str, pa.Array] = {
        "image": pa.array([{"bytes": picture, "path": None} for picture in pictures], image_type)
    }
    features: dict[str, object] = {"image": {"_type": "Image"}}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.int64())
        features["label"] = {"_type": "ClassLabel", "names": list(class_names or ())}
    metadata = {"huggingface": canonical_json({"info": {"features": features}})}  # how `datasets` tells the types
    return pa.table(columns).replace_schema_metadata(metadata)


def load_images(name: str, folder: Path) -> "datasets.Dataset":
    """The images of a release.

    Its files may be a stranger's: a row that names another file, or the address of one, in place of an image is
    refused.

    Args:
        name (`str`): Of the release, for the message.
        folder (`Path`): Of the release.

    Raises:
        IntegrityError: They are none that this library wrote.
    """
    import datasets
    import pyarrow as pa
    from pyarrow import parquet

    index = dataset_index(folder)
    try:
        if index is None:
            raise ValueError
        names = _class_names(index["class_names"])
        tables = [parquet.read_table(folder / shard) for shard in shard_names(index["num_shards"])]
        table = pa.concat_tables(tables)
        columns = ["image", *(() if names is None else ("label",))]
        image = table.column("image").combine_chunks()
        if table.column_names != columns or len(table) != index["num_images"]:
            raise ValueError
        if image.field("bytes").null_count or image.field("path").null_count != len(table):
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


def class_names_of(images: "datasets.Dataset") -> tuple[str, ...] | None:
    """By class id; `None` without classes."""
    label = images.features.get("label")
    return None if label is None else tuple(label.names)


def _class_names(found: Any) -> list[str] | None:
    """Raises `ValueError` where they are no label set."""
    if found is None:
        return None
    whole = isinstance(found, list) and 0 < len(found) <= MOST_CLASSES
    if not whole or not all(isinstance(each, str) and len(each) <= LONGEST_NAME for each in found):
        raise ValueError
    return found
