# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The records of a source, read in any part: an encoded image, its class, its id. They travel to another process as
a list of files, not as images."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from ..errors import UsageError, first_line


#: What an image is called, whoever else is there: its path relative to the data folder, its value in the key column,
#: its row number, or the value in its unit column, which all images of the unit have. `None`: it has no id.
Id = str | int | None
#: An encoded image (or none), the index of its class (or none: absent, or not in the label set), and its id.
Record = tuple[bytes | Path | Image.Image | None, int | None, Id]


class Records(Protocol):
    """Records in a fixed order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Record]: ...

    def read(self, start: int, stop: int) -> Iterator[Record]:
        """Those from `start` up to, without, `stop`; one after the other, so that they are never in memory
        together."""

    def ids(self) -> Iterator[Id]:
        """The ids of all records, in order. No image is read."""


@dataclass(frozen=True)
class ListedRecords:
    """Records that are all known, such as the files of a folder."""

    records: list[Record]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def read(self, start: int, stop: int) -> Iterator[Record]:
        return iter(self.records[start:stop])

    def ids(self) -> Iterator[Id]:
        return (record[2] for record in self.records)


@dataclass(frozen=True)
class DatasetRecords:
    """The rows of a dataset, which Arrow maps into memory from its files.

    Args:
        dataset (`datasets.Dataset`): Its image column gives encoded images.
        image_column, label_column, id_column (`str`, the last two *optional*): Names of the columns. Without an
            `id_column` the id of an image is its row number, or its path below `root`.
        places (`list[int]`, *optional*): The declared place of each class of a `ClassLabel`.
        class_names (`tuple[str, ...]`, *optional*): The public label set, `None` for unlabelled images.
        dataset_name (`str`): As `--dataset_name` gives it, for messages.
        root (`str`, *optional*): The folder of a data set of image files, as their paths begin.
    """

    dataset: Any
    image_column: str
    label_column: str | None
    id_column: str | None
    places: list[int] | None
    class_names: tuple[str, ...] | None
    dataset_name: str
    root: str | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Record]:
        return self.read(0, len(self))

    def read(self, start: int, stop: int) -> Iterator[Record]:
        """Raises `UsageError` where a file of the dataset cannot be read."""
        stop = min(stop, len(self))
        rows = iter(self.dataset.select(range(start, stop)))
        for number in range(start, stop):
            with self._readable():
                row = next(rows)
            label = None
            if self.class_names is not None:
                label = _class_index(row[self.label_column], self.places, self.class_names)
            encoded = _encoded(row[self.image_column])
            yield encoded, label, self._id(number, row[self.id_column] if self.id_column else row[self.image_column])

    def ids(self) -> Iterator[Id]:
        if self.id_column is None and self.root is None:
            yield from range(len(self))
            return
        with self._readable():
            for number, row in enumerate(self.dataset.select_columns([self.id_column or self.image_column])):
                yield self._id(number, next(iter(row.values())))

    def _id(self, number: int, value: Any) -> Id:
        """Of row `number`, by its value in the column that has ids, or in that of the images. Empty text is no id."""
        if self.id_column is None and self.root is None:
            return number
        if self.root is not None and self.id_column is None:
            path = value.get("path") if isinstance(value, dict) else None
            return None if path is None else os.path.relpath(path, self.root)
        return value if isinstance(value, int) or isinstance(value, str) and value.strip() else None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of Arrow or the file system
            reason = first_line(error)
            raise UsageError(
                f"--dataset_name {self.dataset_name} could not be read ({reason}): a file of it is missing or "
                "damaged; restore it."
            ) from None


def _encoded(value: Any) -> bytes | Path | None:
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"]
        return None if value.get("path") is None else Path(value["path"])
    return value


def _class_index(value: Any, places: list[int] | None, class_names: tuple[str, ...]) -> int | None:
    """The label's place in the declared label set; `None` for one that is absent or not in the set."""
    if isinstance(value, str):
        return class_names.index(value) if value in class_names else None
    places = list(range(len(class_names))) if places is None else places
    return places[value] if isinstance(value, int) and 0 <= value < len(places) else None
