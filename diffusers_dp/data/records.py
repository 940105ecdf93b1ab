# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The records of a source, read in any part: an encoded image, its class, its unit. They travel to another process as
a list of files, not as images."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from ..errors import UsageError, first_line
from ..files.strange_files import is_own


#: An encoded image (or none), the index of its class (or none: absent, or not in the label set), and whose it is (or
#: none).
Record = tuple[bytes | Path | Image.Image | None, int | None, Any]


class Records(Protocol):
    """Records in a fixed order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Record]: ...

    def read(self, start: int, stop: int) -> Iterator[Record]:
        """Those from `start` up to, without, `stop`; one after the other, so that they are never in memory
        together."""


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


@dataclass(frozen=True)
class DatasetRecords:
    """The rows of a dataset, which Arrow maps into memory from its files.

    Args:
        dataset (`datasets.Dataset`): Its image column gives encoded images.
        image_column, label_column, unit_column (`str`, the last two *optional*): Names of the columns.
        places (`list[int]`, *optional*): The declared place of each class of a `ClassLabel`.
        class_names (`tuple[str, ...]`, *optional*): The public label set, `None` for unlabelled images.
        dataset_name (`str`): As `--dataset_name` gives it, for messages.
        roots (tuple of `Path`, *optional*): Folders in which a file may lie that a row names; unset: anywhere.
    """

    dataset: Any
    image_column: str
    label_column: str | None
    unit_column: str | None
    places: list[int] | None
    class_names: tuple[str, ...] | None
    dataset_name: str
    roots: tuple[Path, ...] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Record]:
        return self.read(0, len(self))

    def read(self, start: int, stop: int) -> Iterator[Record]:
        """Raises `UsageError` where a file of the dataset cannot be read."""
        stop = min(stop, len(self))
        rows = iter(self.dataset.select(range(start, stop)))
        for _ in range(start, stop):
            try:
                row = next(rows)
            except Exception as error:  # of Arrow or the file system
                reason = first_line(error)
                raise UsageError(
                    f"--dataset_name {self.dataset_name} could not be read ({reason}): a file of it is missing or "
                    "damaged; restore it."
                ) from None
            label = None
            if self.class_names is not None:
                label = _class_index(row[self.label_column], self.places, self.class_names)
            unit = None if self.unit_column is None else row[self.unit_column]
            yield _own(_encoded(row[self.image_column]), self.roots), label, unit


def _encoded(value: Any) -> bytes | Path | None:
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"]
        return None if value.get("path") is None else Path(value["path"])
    return value


def _own(image: bytes | Path | None, roots: tuple[Path, ...] | None) -> bytes | Path | None:
    """The image, unless it is a file elsewhere, or none."""
    if roots is None or not isinstance(image, Path):
        return image
    return image if image.is_file() and any(is_own(root, image) for root in roots) else None


def _class_index(value: Any, places: list[int] | None, class_names: tuple[str, ...]) -> int | None:
    """The label's place in the declared label set; `None` for one that is absent or not in the set."""
    if isinstance(value, str):
        return class_names.index(value) if value in class_names else None
    places = list(range(len(class_names))) if places is None else places
    return places[value] if isinstance(value, int) and 0 <= value < len(places) else None
