# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which images are meant, as a person names them: sensitive ones, public ones, or real ones to compare with. Then the
records of a source, read in any part: an encoded image, its class, its id. They travel to another process as a list of
files, not as images."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from ..errors import UsageError, first_line
from ..files.untrusted_files import is_own
from .decoding import MAX_IMAGE_PIXELS, ValueRange
from .values import id_of, label_of


#: What an image is called, whoever else is there: its path relative to the data folder, its value in the key column,
#: its row number, or the value in its unit column, which all images of the unit have. `None`: it has no id.
Id = str | int | None
#: An encoded image (or none), the index of its class (or none: absent, or not in the label set), and its id.
Record = tuple[bytes | Path | Image.Image | None, int | None, Id]


ROWS_AT_ONCE, IDS_AT_ONCE = 16, 1024  # in memory, with and without images


class MissingSplit(UsageError):
    """The data set is there, and has no split of that name."""


@dataclass(frozen=True)
class DataSource:
    """A data set by its name, and the public facts that are declared of it. Fields are called like the flags of
    training.

    Args:
        dataset_name (`str`, *optional*): Hub id, local folder, or CSV or JSON lines file that names images.
        dataset_config_name (`str`, *optional*): Its configuration, where it has several.
        train_data_dir (`str`, *optional*): Folder of one folder of images per class, in place of `dataset_name`.
        train_split, image_column (`str`): Split and column of the data set.
        label_column, unit_column, key_column (`str`, *optional*): Class, unit and own id of each image.
        delimiter (`str`): One character between the fields of a CSV file.
        class_names (`tuple[str, ...]`, *optional*): The declared label set; unset: that of the data set.
        image_shape (`tuple[int, int, int]`): (channels, height, width) to which images are brought.
        num_train_images, num_train_units (`int`, *optional*): Declared numbers.
        validation_size (`int`): Images that are held out: each by its id, or by that of its unit.
        max_image_pixels (`int`): An image of more pixels is not decoded, and counts as damaged.
        value_range (`tuple[float, float]`, *optional*): Declared black and white of images with more than 8 bits.
        image_suffixes (`tuple[str, ...]`, *optional*): Suffixes of image files in `train_data_dir`; unset: those of
            pictures.
        num_workers (`int`, *optional*): Processes that decode; 0: none beside this one; unset: one for each core.
        declared_only (`bool`): A dry run: what is declared is all that is known, and nothing is looked at.
        own_files (`bool`): A card of `dataset_name` that names files of another place is refused, and a row that does
            has no image.
        is_untrusted (`bool`): A stranger's folder: see `untrusted_tables`, besides `own_files`.
    """

    dataset_name: str | None = None
    dataset_config_name: str | None = None
    train_data_dir: str | None = None
    train_split: str = "train"
    image_column: str = "image"
    label_column: str | None = None
    unit_column: str | None = None
    key_column: str | None = None
    delimiter: str = ","
    class_names: tuple[str, ...] | None = None
    image_shape: tuple[int, int, int] = (1, 8, 8)
    num_train_images: int | None = None
    num_train_units: int | None = None
    validation_size: int = 0
    max_image_pixels: int = MAX_IMAGE_PIXELS
    value_range: ValueRange | None = None
    image_suffixes: tuple[str, ...] | None = None
    num_workers: int | None = None
    declared_only: bool = False
    own_files: bool = False
    is_untrusted: bool = False

    @property
    def id_column(self) -> str | None:
        """The column that has the ids: of units, or else of images."""
        return self.unit_column or self.key_column

    @property
    def declared_classes(self) -> tuple[str, ...] | None:
        """`class_names`, where nothing else tells the label set. Raises `UsageError` where labels need one."""
        if self.label_column is not None and self.class_names is None:
            raise UsageError(
                "needs declared class names, because the metadata tells no label set: give both.", field="label_column"
            )
        return self.class_names

    @property
    def uses_digits(self) -> bool:
        """True where nothing names or describes other images: the embedded digits."""
        return self.dataset_name is None and self.train_data_dir is None and self.class_names is None


class ImageSource:
    """What is known of images without reading one, and the images.

    Attributes:
        ids (`str`): What the id of a record is: its `"path"`, the number of its `"row"`, or its value in a `"column"`.
        has_unnamed_classes (`bool`): Whether a table has a column of labels, and no flag names their classes.
    """

    ids: str = "row"
    has_unnamed_classes: bool = False

    def count(self) -> int | None:
        """Number of images, `None` where it cannot be known without reading them."""
        raise NotImplementedError

    def class_names(self) -> tuple[str, ...] | None:
        """The public label set, `None` for unlabelled images."""
        raise NotImplementedError

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> "Records":
        """The images in a fixed order, each with its class; none is read yet."""
        raise NotImplementedError

    def files(self) -> list[Path | str]:
        """The data files: local ones as paths, others by their address; none of them is opened for it."""
        return []

    def descriptions(self) -> list[Path]:
        """Local files that hold no image and say what the images are, such as their labels."""
        return []

    def labels(self, cache_dir: Path) -> Iterator[Any]:
        """The labels as they are written, of a data set whose columns tell them; otherwise nothing. Private."""
        return iter(())

    def ignored(self) -> dict[str, int]:
        """How many files beside the images are not read, by suffix. Private, as the number of images is."""
        return {}


class ListedRecords(list[Record]):
    """Records that are all known, such as the files of a folder."""

    def read(self, places: Sequence[int]) -> Iterator[Record]:
        """Those at these positions, one after the other, so that they are never in memory together."""
        return (self[place] for place in places)

    def ids(self) -> Iterator[Id]:
        """The ids of all records, in order. No image is read."""
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
        dataset_name (`str`): As `--dataset_name` gives it: for messages, and where relative paths in rows begin.
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
        folder = Path(os.path.expanduser(self.dataset_name))
        for number, row in self._rows(places, list(columns), ROWS_AT_ONCE):
            label = None if label_column is None else self._label(row[label_column])
            image = _own(_encoded(row[self.image_column], folder), self.roots)
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
                reason = first_line(error) if isinstance(error, OSError) else type(error).__name__  # no value
                raise UsageError(
                    f"{self.dataset_name} could not be read ({reason}): a file of it is missing or damaged; restore "
                    "it.",
                    field="dataset_name",
                ) from None
            for number, values in zip(numbers, zip(*found.values())):
                yield number, dict(zip(columns, values))


#: Records in a fixed order.
Records: TypeAlias = ListedRecords | DatasetRecords


def values_of(column: Any) -> list[Any]:
    """The values of an Arrow column, one by one; text that is not UTF-8 is `None`. Images keep the fields that make
    them, because Python has no value for some dates in others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_struct(kind):
        fields = [(i, kind.field(i).name) for i in range(kind.num_fields)]
        parts = {name: values_of(pc.struct_field(column, i)) for i, name in fields if name in ("bytes", "path")}
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


def _encoded(value: Any, folder: Path) -> bytes | Path | None:
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"]
        return folder / value["path"] if isinstance(value.get("path"), str) else None
    return value


def _own(image: bytes | Path | None, roots: tuple[Path, ...] | None) -> bytes | Path | None:
    """The image, unless it is a file elsewhere, or none."""
    if roots is None or not isinstance(image, Path):
        return image
    return image if image.is_file() and any(is_own(root, image) for root in roots) else None
