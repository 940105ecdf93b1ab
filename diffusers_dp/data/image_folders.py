# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Local folders of image files whose classes, units and keys a table tells, or the folders' names: every record is
read without regard to any other. No torch."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.untrusted_files import is_own
from ..verify import RECEIPT_NAME
from .decoding import is_image
from .folders import (
    class_folders,
    files_below,
    is_service,
    meant_split,
    refuse_inner_splits,
    refuse_some_splits,
    splits_in,
    subfolders,
)
from .records import DataSource, Id, ImageSource, ListedRecords, MissingSplit, Record, Records
from .tables import TABLES, Columns, Row, columns_of, rows_of
from .untrusted_tables import check_folder, check_kind
from .values import ID_TYPE, LABEL_TYPE, TEXT, id_of, in_nfc, label_of, listed


METADATA = tuple(f"metadata{suffix}" for suffix in TABLES)  # beside images, as `datasets` calls them
FILE_NAME = "file_name"


def is_table(place: str) -> bool:
    """Whether `--dataset_name` names a CSV file or a file of JSON lines."""
    return place.lower().endswith((".csv", ".jsonl")) and os.path.isfile(os.path.expanduser(place))


def holds_images(folder: Path) -> bool:
    """Whether a folder holds image files, and no file of many images."""
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return False
    files = files_below(folder)
    tables = (
        path.suffix.lower() in (".arrow", ".tar", ".parquet") and path.name.lower() not in METADATA for path in files
    )
    return any(map(is_image, files)) and not any(tables)


class ImageFolderSource(ImageSource):
    """
    Image files, and `metadata.csv`, `.jsonl` or `.parquet` in any folder among them, or one table that names them.

    A line belongs to the file that its column `file_name` (or `--image_column`) names, relative to the folder of the
    table. A line whose file is missing, and a file that no line names, are damaged records; a name that was misspelt
    makes one of both. Beside one table that `--dataset_name` names, files without a line are no records. Names are
    compared in Unicode's form NFC.

    Args:
        data (`DataSource`): Its `dataset_name` is the folder or the table. Or its `train_data_dir` is a folder of one
            folder per class, beside which no table is read; a declared class without a folder has no images.

    Raises:
        UsageError: A split, a column or the classes are missing, or the folder holds tables of two kinds, or files
            whose names differ in their form of Unicode alone.
    """

    def __init__(self, data: DataSource):
        self._by_class = data.train_data_dir is not None
        if self._by_class:  # no table is read
            data = replace(data, label_column=None, unit_column=None, key_column=None)
        self.data, self.ids = data, "path" if data.id_column is None else "column"
        self._field = "train_data_dir" if self._by_class else "dataset_name"
        place = Path(os.path.expanduser(data.train_data_dir or data.dataset_name or ""))
        self._named_alone = not self._by_class and place.is_file()
        self.root = place.parent if self._named_alone else place
        self._classes = [in_nfc(name) for name in data.class_names or ()]
        if self._by_class:
            self._check_class_folders()
        elif data.is_untrusted:
            check_folder(self.root, self._field)
        files = files_below(self.root)
        self._all = {self._relative(path): path for path in files}
        if len(self._all) < len(files):
            raise UsageError(
                "holds two files whose names differ only in how Unicode writes an accent; rename one.",
                field=self._field,
            )
        inner = self.root if self._by_class or self._named_alone else self._split_folder()
        self._below = "" if inner == self.root else f"{self._relative(inner)}/"
        self._images, self._tables = self._all, [place]
        if self._named_alone:  # whatever a line names is meant; the decoder knows whether it is an image
            self._check_single_split()
        else:
            self._images = {
                name: path
                for name, path in self._all.items()
                if name.startswith(self._below) and is_image(path, data.image_suffixes)
            }
            named = [] if self._by_class else [path for path in files if path.name.lower() in METADATA]
            self._tables = [path for path in named if self._concerns(path)]
            if data.is_untrusted:
                packed = [str(path) for path in self._tables if path.suffix.lower() == ".parquet"]
                check_kind("parquet", packed, str(place))
        if self._by_class and not all("/" in name for name in self._images):
            found = "holds images outside the class folders; move each into its class, or name a folder"
            raise UsageError(f"{found} without classes by --dataset_name (--public_dataset_name).", field=self._field)
        names = [in_nfc(path.name) for path in subfolders(inner)]
        self.folders_are_classes = bool(set(names) & set(self._classes))
        self._check_tables()
        if not self._tables and data.class_names is None and len({path.parent for path in self._images.values()}) > 1:
            raise UsageError("must declare the classes of a folder of class folders.", field="class_names")
        if not self._tables and data.class_names is not None and not self.folders_are_classes:
            raise UsageError(
                f"names no folder in {place}, which has no metadata file either; it holds: "
                f"{listed(names) or 'no folder'}; give a folder that holds one for each class.",
                field="class_names",
            )

    def count(self) -> int:
        return len(self._lines) if self._named_alone else max(len(self._lines), len(self._images))

    def class_names(self) -> tuple[str, ...] | None:
        return self.data.declared_classes

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> Records:
        found: dict[str, Record] = {}
        missing = 0  # lines without a file
        for name, row in self._lines:
            if name is None or name not in self._images:
                missing += 1
            elif name in found:
                raise UsageError(
                    "The table names one file in two lines; let one line stay, and --unit_column say whose images "
                    "belong together.",
                    field="dataset_name",
                )
            else:
                found[name] = self._record(name, row or {})
        damaged: Record = (None, None, None)
        if self._named_alone:
            return ListedRecords([*found.values(), *[damaged] * missing])
        known = [found.get(name, damaged) for name in self._images]
        return ListedRecords(known + [damaged] * max(0, len(found) + missing - len(self._images)))

    def files(self) -> list[Path | str]:
        if not self._named_alone:
            return list(self._images.values())
        named = {name for name, _ in self._lines}
        return [path for name, path in self._images.items() if name in named]

    def descriptions(self) -> list[Path]:
        return list(self._tables)

    def labels(self, cache_dir: Path) -> Iterator[Any]:
        if not self._tables:
            return (name.removeprefix(self._below).partition("/")[0] for name in self._images)
        named = self.data.label_column is not None
        return (row.get(self._label) for _, row in self._lines if row is not None and (named or self._label in row))

    def ignored(self) -> dict[str, int]:
        found, suffixes = self._all.values(), self.data.image_suffixes
        read = self.files() if self._named_alone else (path for path in found if is_image(path, suffixes))
        known = {*self._tables, *read}
        others = (path for path in found if path not in known)
        return dict(Counter("".join(path.suffixes[-2:]).lower() for path in others))

    def _relative(self, path: Path) -> str:
        return in_nfc(path.relative_to(self.root).as_posix())

    def _check_class_folders(self) -> None:
        """The folders are declared classes, and none is of a run or a release."""
        if any((self.root / name).exists() for name in (RECEIPT_NAME, "private/run.json")):
            raise UsageError(f"{self.root} is a run or a release; give the folder of your images.", field=self._field)
        unknown = [name for name in class_folders(self.root, self._field) if name not in self._classes]
        if unknown:
            raise UsageError(
                f"does not list the folder(s) {', '.join(unknown)}; add them, or move them away.", field="class_names"
            )
        if (service := next(filter(is_service, self._classes), None)) is not None:
            raise UsageError(
                f"names '{service}', a folder of a system or a program, whose files are no records; rename it.",
                field="class_names",
            )

    def _split_folder(self) -> Path:
        """The folder of `--train_split`, or the root where it has no splits."""
        folders, split = splits_in(self.root), self.data.train_split
        named = meant_split(split, [path.name for path in folders])
        if named is not None:
            refuse_inner_splits(self.root / named, self._field)
            return self.root / named
        if folders:
            raise MissingSplit(
                f"'{split}' is not one of the folders {', '.join(path.name for path in folders)}, which look like "
                f"splits; give --dataset_name {folders[0]}.",
                field="train_split",
            )
        refuse_some_splits(self.root, self._field, self.data.class_names or ())
        self._check_single_split()
        return self.root

    def _check_single_split(self) -> None:
        """No folder is a split, and none is asked for."""
        refuse_inner_splits(self.root, self._field)
        if self.data.train_split != "train":
            raise MissingSplit(f"'{self.data.train_split}' does not exist; there is: train.", field="train_split")

    def _concerns(self, table: Path) -> bool:
        """Whether a table lies in the split's folder, or in one around it."""
        folder = self._relative(table.parent)
        return folder == "." or f"{folder}/".startswith(self._below)

    def _check_tables(self) -> None:
        """Tables are of one format, at most one in a folder, and have the columns that the flags name, of types that
        can be read."""
        name = self.data.dataset_name
        for flag in ("label_column", "unit_column", "key_column"):
            column = getattr(self.data, flag)
            if column is not None and not self._tables:
                raise UsageError(
                    f"'{column}' does not exist: {name} has no metadata.csv, metadata.jsonl or metadata.parquet; add "
                    "one.",
                    field=flag,
                )
        if len({path.parent for path in self._tables}) < len(self._tables):
            raise UsageError(f"{name} has two metadata files in one folder; keep one.", field="dataset_name")
        if len({path.suffix.lower() for path in self._tables}) > 1:
            raise UsageError(
                f"{name} has metadata files of several formats, in which an id can be text or a number; write all in "
                "one.",
                field="dataset_name",
            )
        first: dict[str, str] = {}
        for table in self._tables:
            columns = columns_of(table, self._wanted, self.data.delimiter)
            if columns is not None:
                self._check_columns(table, columns, first)

    def _check_columns(self, table: Path, columns: Columns, first: dict[str, str]) -> None:
        """Columns are public: those of a CSV file or of Parquet are in its header. Those of Parquet can be read, and
        have the types of the first file."""
        there = f"; there is: {listed(columns)}"
        suffixes = (None, self.data.image_suffixes)
        if any(is_image(Path(name), each) for name in columns for each in suffixes):  # no record is shown
            there = ", whose first line looks like a record; write one with the names of the columns above it"
        elif len(columns) == 1 and re.search(r"[;|\t]", next(iter(columns))):
            there += ". If another character separates them, give --delimiter"
        labelled = self.data.class_names is not None or self.data.label_column is not None
        self.has_unnamed_classes |= not labelled and self._label in columns
        from_folders = self.data.label_column is None and self.folders_are_classes
        named, unnamed = self.data.image_column, self.data.image_column == DataSource.image_column
        asked = [
            ("image_column", FILE_NAME if unnamed and named not in columns else named, TEXT),
            ("label_column", self._label if labelled else None, LABEL_TYPE),
            ("unit_column", self.data.unit_column, ID_TYPE), ("key_column", self.data.key_column, ID_TYPE),
        ]  # fmt: skip
        for flag, column, kinds in asked:
            if column is None or (column not in columns and flag == "label_column" and from_folders):
                continue
            if column not in columns:
                what = f"'{column}' does not exist in {table.name}"
                if flag == "image_column" and unnamed:
                    what = f"'{self.data.image_column}' does not exist in {table.name}, nor {FILE_NAME}"
                raise UsageError(f"{what}{there}.", field=flag)
            found = columns[column]
            if isinstance(found, list):  # the names of classes are what is read
                if flag == "label_column" and not set(found) <= set(self.data.class_names or found):
                    raise UsageError(
                        f"contradicts column '{column}' of {table.name}, which has: {listed(found)}; name these.",
                        field="class_names",
                    )
                found = "string"
            if found is not None and not re.fullmatch(kinds, found):
                what = "text" if kinds == TEXT else "text or integers"
                raise UsageError(f"'{column}' of {table.name} has values of type {found}; write {what}.", field=flag)
            if found is not None and first.setdefault(column, found) != found:
                raise UsageError(
                    f"{table} has another type of '{column}' than other files; write all files with one schema.",
                    field="dataset_name",
                )

    @property
    def _label(self) -> str:
        return self.data.label_column or "label"

    @property
    def _wanted(self) -> set[str | None]:
        """The columns that are read: those that flags or their defaults name."""
        label = None if self.data.class_names is None else self._label
        return {self.data.image_column, FILE_NAME, label, self.data.id_column}

    @cached_property
    def _lines(self) -> list[tuple[str | None, Row]]:
        """What is a record: each line of the tables, with the file that it names; each image where there is none."""
        if not self._tables:
            return [(name, {}) for name in self._images]
        lines = (
            (self._name(folder, row), row)
            for table in self._tables
            for folder in [table.parent.relative_to(self.root).as_posix()]
            for row in rows_of(table, self._wanted, self.data.delimiter)
        )
        return [(name, row) for name, row in lines if self._named_alone or self._counts(name)]

    def _name(self, folder: str, row: dict[str, Any] | None) -> str | None:
        """The file that a line of a folder's table names, relative to the root; `None` where it names none there."""
        value = None if row is None else row.get(self.data.image_column, row.get(FILE_NAME))
        if not isinstance(value, str) or "\0" in value:
            return None
        name = os.path.relpath(value, self.root.absolute()) if value.startswith("/") else posixpath.join(folder, value)
        return in_nfc(posixpath.normpath(name))

    def _counts(self, name: str | None) -> bool:
        """Whether a line of metadata is a record: it names an image of this split, or a file there that is missing."""
        return name is not None and name.startswith(self._below) and (name in self._images or name not in self._all)

    def _record(self, name: str, row: dict[str, Any]) -> Record:
        label = None
        if self.data.class_names is not None and self._label in row:
            label = label_of(row[self._label], self.data.class_names)
        elif self.data.label_column is None:
            label = self._folder_label(name)
        identifier: Id = name if self.data.id_column is None else id_of(row.get(self.data.id_column))
        return self._own(self._images[name]), label, identifier

    def _own(self, path: Path) -> Path | None:
        """The file, unless it is a link out of a stranger's folder."""
        strange = not self._by_class and (self.data.own_files or self.data.is_untrusted)
        return path if not strange or is_own(self.root, path) else None

    def _folder_label(self, name: str) -> int | None:
        """By the first folder below the split's."""
        first = name.removeprefix(self._below).partition("/")[0]
        return self._classes.index(first) if first in self._classes else None
