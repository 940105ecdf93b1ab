# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The records of a source, read in any part: an encoded image, its class, its id. They travel to another process as
a list of files, not as images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from ..errors import UsageError, first_line
from ..files.untrusted_files import is_own
from .values import id_of, label_of


#: What an image is called, whoever else is there: its path relative to the data folder, its value in the key column,
#: its row number, or the value in its unit column, which all images of the unit have. `None`: it has no id.
Id = str | int | None
#: An encoded image (or none), the index of its class (or none: absent, or not in the label set), and its id.
Record = tuple[bytes | Path | Image.Image | None, int | None, Id]


ROWS_AT_ONCE, IDS_AT_ONCE = 16, 1024  # in memory, with and without images


class Records(Protocol):
    """Records in a fixed order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Record]: ...

    def read(self, places: Sequence[int]) -> Iterator[Record]:
        """Those at these positions, one after the other, so that they are never in memory together."""

    def ids(self) -> Iterator[Id]:
        """The ids of all records, in order. No image is read."""


class ListedRecords(list[Record]):
    """Records that are all known, such as the files of a folder."""

    def read(self, places: Sequence[int]) -> Iterator[Record]:
        return (self[place] for place in places)

    def ids(self) -> Iterator[Id]:
        return (record[2] for record in self)


@dataclass(frozen=True)
class DatasetRecords:
    """The rows of a dataset, which Arrow maps into memory from its files.

    Args:
        dataset (`datasets.Dataset`): Its image column gives encoded images.
        image_column, label_column, id_column (`str`, the last two *optional*): Names of the columns. Without an
            `id_column` the id of an image is its row number.
        places (`list[int]`, *optional*): The declared place of each class of a `ClassLabel`.
        class_names (`tuple[str, ...]`, *optional*): The public label set, `None` for unlabelled images.
        dataset_name (`str`): As `--dataset_name` gives it, for messages.
        roots (tuple of `Path`, *optional*): Folders in which a file may lie that a row names; unset: anywhere.
    """

    dataset: Any
    image_column: str
    label_column: str | None
    id_column: str | None
    places: list[int] | None
    class_names: tuple[str, ...] | None
    dataset_name: str
    roots: tuple[Path, ...] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Record]:
        return self.read(range(len(self)))

    def read(self, places: Sequence[int]) -> Iterator[Record]:
        """Raises `UsageError` where a file of the dataset cannot be read."""
        label_column = None if self.class_names is None else self.label_column
        columns = dict.fromkeys(name for name in (self.image_column, label_column, self.id_column) if name is not None)
        for number, row in self._rows(places, list(columns), ROWS_AT_ONCE):
            label = None if label_column is None else self._label(row[label_column])
            image = _own(_encoded(row[self.image_column]), self.roots)
            yield image, label, self._id(number, row[self.id_column] if self.id_column else None)

    def ids(self) -> Iterator[Id]:
        if self.id_column is None:
            yield from range(len(self))
            return
        for number, row in self._rows(range(len(self)), [self.id_column], IDS_AT_ONCE):
            yield self._id(number, row[self.id_column])

    def _label(self, value: Any) -> int | None:
        """The declared place of a label: of an integer of a `ClassLabel` by its own names, of others by `label_of`."""
        if self.places is None or isinstance(value, str):
            return label_of(value, self.class_names or ())
        return self.places[value] if isinstance(value, int) and 0 <= value < len(self.places) else None

    def _id(self, number: int, value: Any) -> Id:
        """The id of row `number`, by its value in the column of ids. The class -1 of `datasets` means none."""
        if self.id_column is None:
            return number
        found = id_of(value)
        is_class = hasattr(self.dataset.features[self.id_column], "names")
        return None if is_class and isinstance(found, int) and found < 0 else found

    def _rows(self, places: Sequence[int], columns: list[str], size: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Numbers and values of rows, `size` in memory at a time. Text that is not UTF-8 is `None` in its own record
        alone."""
        dataset = self.dataset.select_columns(columns).with_format("arrow")
        for first in range(0, len(places), size):
            numbers = places[first : first + size]
            try:
                table = dataset[numbers]
                found = {name: values_of(table[name]) for name in columns}
            except Exception as error:  # of Arrow or the file system
                reason = first_line(error)
                raise UsageError(
                    f"{self.dataset_name} could not be read ({reason}): a file of it is missing or damaged; restore "
                    "it.",
                    field="dataset_name",
                ) from None
            for number, values in zip(numbers, zip(*found.values())):
                yield number, dict(zip(columns, values))


def values_of(column: Any) -> list[Any]:
    """The values of an Arrow column, one by one; text that is not UTF-8 is `None`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_struct(kind):
        parts = {kind.field(i).name: values_of(pc.struct_field(column, i)) for i in range(kind.num_fields)}
        return [dict(zip(parts, values)) for values in zip(*parts.values())]
    if pa.types.is_dictionary(kind):
        return values_of(column.cast(kind.value_type))
    if any(is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return [_text(value) for value in column.cast(pa.large_binary()).to_pylist()]
    return column.to_pylist()


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


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
