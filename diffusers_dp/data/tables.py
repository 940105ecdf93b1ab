# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tables beside images, CSV and JSON lines: one physical line is one record, read without regard to any other. The
readers of other libraries take a column's type from all of its values, and one stray quote joins lines. No torch."""

import csv
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.untrusted_files import regular_size
from .values import class_of


#: The values of one record by column; `None`: its line is damaged.
Row = dict[str, Any] | None
#: The names of columns, and in Parquet the type of those that are read: its name, or the names of a `ClassLabel`, in
#: the order of their integers.
Columns = dict[str, str | list[str] | None]
TABLES = (".csv", ".jsonl", ".parquet")
MOST_HEADER = 2**20  # bytes
csv.field_size_limit(2**31 - 1)  # a long report in a field is no damage


def columns_of(path: Path, wanted: Collection[str | None], delimiter: str = ",") -> Columns | None:
    """The header of a CSV file, or the columns of a Parquet file, which are public; `None` for JSON lines.

    Args:
        path (`Path`): A file that ends in one of `TABLES`.
        wanted (collection of `str`): Columns whose type is told.
        delimiter (`str`): As in `rows_of`.

    Raises:
        UsageError: It cannot be read, or names a column twice.
    """
    types: Columns = {}
    try:
        regular_size(path)
        if path.suffix.lower() == ".csv":
            with open(path, "rb") as file:
                header = _fields(file.readline(MOST_HEADER).removeprefix(b"\xef\xbb\xbf"), delimiter)
        elif path.suffix.lower() == ".parquet":
            header, types = _types_of(path, wanted)
        else:
            return None
    except Exception:  # of the file system, or whatever `datasets` makes of a note that others wrote
        raise UsageError(f"{path} cannot be read; restore it.", field="dataset_name") from None
    if not header or len(set(header)) < len(header):
        raise UsageError(
            f"{path} does not begin with a line that names each column once, separated by '{delimiter}'; add it, or "
            "give --delimiter.",
            field="dataset_name",
        )
    return {name: types.get(name) for name in header}


def _types_of(path: Path, wanted: Collection[str | None]) -> tuple[list[str], Columns]:
    """All columns of a Parquet file, and the types of some."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet

    whole = pyarrow.parquet.read_schema(path)
    schema = pa.schema([field for field in whole if field.name in wanted], metadata=whole.metadata)
    features = datasets.Features.from_arrow_schema(schema)
    kinds: Columns = {field.name: str(field.type) for field in schema}
    kinds |= {name: list(kind.names) for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)}
    return list(whole.names), kinds


def rows_of(path: Path, columns: Collection[str | None], delimiter: str = ",") -> Iterator[Row]:
    """Reads the records of a table one by one. Empty lines are no records.

    Args:
        path (`Path`): A file that ends in one of `TABLES`.
        columns (collection of `str`): Those that are needed: no other is kept, and of Parquet none is read.
        delimiter (`str`): One character between the fields of a CSV file. Within double quotes it is text. A field
            holds no line break.

    Yields:
        `Row`: Text in CSV files; in the others whatever JSON or Parquet has.

    Raises:
        UsageError: The file cannot be read, or its first line names no columns.
    """
    header = columns_of(path, columns, delimiter)
    if path.suffix.lower() == ".parquet":
        yield from _parquet(path, header or {}, columns)
        return
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file):
                if number == 0:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if (number == 0 and header is not None) or not line.strip():
                    continue
                row = _object(line) if header is None else _record(line, header, delimiter)
                yield row and {name: value for name, value in row.items() if name in columns}
    except OSError:
        raise UsageError(f"{path} cannot be read; restore it.", field="dataset_name") from None


def _fields(line: bytes, delimiter: str) -> list[str] | None:
    """The fields of one line of CSV; `None` where it is damaged. A name in another encoding than UTF-8 damages the
    field that holds it, which need not be one that is read."""
    try:
        text = line.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
        if "\0" in text or "\r" in text:
            return None
        found = list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return found[0] if len(found) == 1 else None


def _record(line: bytes, header: Columns, delimiter: str) -> Row:
    fields = _fields(line, delimiter)
    return None if fields is None or len(fields) != len(header) else dict(zip(header, fields))


def _object(line: bytes) -> Row:
    """One line of JSON lines; `None` where it is no object, or names a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("A key stands there twice.")
        return found

    try:
        told = json.loads(line.decode("utf-8", "surrogateescape"), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _parquet(path: Path, header: Columns, wanted: Collection[str | None]) -> Iterator[Row]:
    import pyarrow.parquet

    from .records import values_of

    there = [name for name in header if name in wanted]
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024, columns=there):
                columns = {name: values_of(batch.column(name)) for name in there}
                for name, classes in header.items():
                    if isinstance(classes, list):
                        columns[name] = [class_of(classes, value) for value in columns[name]]
                yield from (dict(zip(columns, values)) for values in zip(*columns.values()))
    except (OSError, ValueError):
        raise UsageError(f"{path} cannot be read; restore it.", field="dataset_name") from None
