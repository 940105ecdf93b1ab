# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Data sets of a stranger on this machine: nothing outside of their folder is read, and what would unpack to far more
than its files is refused. No torch."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files.untrusted_files import foreign_entries, read_bounded, regular_size
from ..files.untrusted_values import leaves_of, parse_json, parse_yaml


if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS = 10_000_000
ROWS_AT_ONCE = 16  # before their size is looked at
#: Bytes that a data set may unpack to, beside so many times those of its files. A row counts as some bytes more.
UNPACKED, TIMES, ROW = 2**26, 100, 256
#: They unpack to some twenty times their size at most. Others may reach a thousand times.
CODECS = {"SNAPPY", "UNCOMPRESSED"}
CARDS, MOST_CARD = ("README.md", ".huggingface.yaml"), 10_000_000  # where `datasets` looks for names of files
#: A folder as it is named, and as `datasets` names its files where it is a link.
ROOTS = (os.path.abspath, os.path.realpath)
ELSEWHERE = re.compile(r"://|^[/~\\]|(^|/)\.\.(/|$)")
_PACKED_TYPES = ("dictionary<", "run_end_encoded", "extension<")


class Bomb(ValueError):
    """A table that says so of itself."""


def batches_of(paths: Sequence[Path]) -> "Iterator[pa.RecordBatch]":
    """The rows of parquet files, a few at a time. A column that repeats one value is small in its file: the rows are
    counted before they are unpacked, and their bytes meanwhile.

    Raises:
        Bomb: There are too many rows or bytes, or the files are packed in a way that may hide any number of them.
        OSError, ValueError: One is no such file.
    """
    from pyarrow import parquet

    left, rows = UNPACKED + TIMES * sum(map(regular_size, paths)), 0
    for path in paths:
        with parquet.ParquetFile(path) as file:
            about, schema = file.metadata, file.schema_arrow
            groups = [about.row_group(group) for group in range(about.num_row_groups)]
            columns = [group.column(column) for group in groups for column in range(about.num_columns)]
            rows += about.num_rows
            types = " ".join(str(field.type) for field in schema)
            if not {column.compression for column in columns} <= CODECS:
                raise Bomb(f"{path.name} is not packed by snappy")
            if rows > MOST_ROWS or any(kind in types for kind in _PACKED_TYPES):
                raise Bomb(f"{path.name} would unpack to far more than it is")
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                left -= batch.nbytes + ROW * len(batch)
                if left < 0:
                    raise Bomb(f"{path.name} would unpack to far more than it is")
                yield batch


def check_folder(folder: Path, field: str) -> None:
    """Looks through a data set before `datasets` opens it.

    Args:
        folder (`Path`): Folder of the data set.
        field (`str`): Flag that named it, for messages.

    Raises:
        UsageError: It holds a link to elsewhere, a pipe or a device, or its card names files outside of it.
    """
    try:
        problem = next(foreign_entries(folder), None)
        if problem is None and any(ELSEWHERE.search(place) for name in CARDS for place in _places(folder / name)):
            problem = "its card names files outside of it"
    except (OSError, ValueError, RecursionError):
        problem = "it cannot be looked through"
    if problem is not None:
        raise UsageError(f"{folder} is not read, for {problem}; give the folder of a data set alone.", field=field)


def check_kind(kind: str, files: Sequence[str], name: str) -> None:
    """Raises `UsageError` for all but Parquet, and for tables that would unpack to far more than it.

    Args:
        kind (`str`): Name of the builder that `datasets` chose.
        files (sequence of `str`): Files of all splits.
        name (`str`): Name of the data set, for messages.
    """
    import pyarrow as pa

    tables = [file for file in files if file.endswith(".parquet")]
    if kind != "parquet" or len(tables) < len(files):
        raise UsageError(
            f"{name} holds other files than pictures and parquet; give a folder of these alone.", field="dataset_name"
        )
    try:
        for _ in batches_of([Path(table) for table in tables]):
            pass
    except Bomb as error:
        raise UsageError(
            f"{name} is not read, for {error}; write the images again with `datasets`' to_parquet.",
            field="dataset_name",
        ) from None
    except (OSError, ValueError, pa.ArrowException):
        raise UsageError(
            f"{name} holds parquet files that cannot be read; give a data set that is whole.", field="dataset_name"
        ) from None


def check_named_files(files: Sequence[str], folder: Path, name: str) -> None:
    """A card can name any file of this machine, or of whoever the token belongs to.

    Args:
        files (sequence of `str`): Files of all splits, as `datasets` found them.
        folder (`Path`): Folder of the data set, if it is one.
        name (`str`): Name of the data set.

    Raises:
        UsageError: One is of another place.
    """
    local = folder.exists()
    if not all(root_of(file, folder) if local else is_of_data_set(file, name) for file in files):
        raise UsageError(
            f"{name} is not read, for its card names files outside of it; give one that holds its own.",
            field="dataset_name",
        )


def check_saved(folder: Path, name: str, own_files: bool) -> None:
    """Looks at the files that a folder of `save_to_disk` names, before `datasets` opens them.

    Args:
        folder (`Path`): Folder of the data set.
        name (`str`): Its name, for messages.
        own_files (`bool`): Whether files of another place are refused.

    Raises:
        UsageError: One is no regular file, or of another place; or the list of them cannot be read.
    """
    for state in sorted(folder.rglob("state.json")):
        try:
            told = parse_json(read_bounded(state, MOST_CARD).decode())
            named = [state.parent / each["filename"] for each in told["_data_files"]]
            for file in named:
                regular_size(file)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise UsageError(
                f"{name} could not be opened (its state.json names no files that can be read); write it again by "
                "save_to_disk.",
                field="dataset_name",
            ) from None
        if own_files:
            check_named_files([str(file) for file in named], folder, name)


def root_of(place: str, folder: Path) -> str | None:
    """The folder, as `datasets` names it in the path of a data file; `None` for a file elsewhere."""
    roots = [] if "://" in place else [root(folder) for root in ROOTS]
    return next((root for root in roots if Path(os.path.abspath(place)).is_relative_to(root)), None)


def is_of_data_set(place: str, name: str) -> bool:
    """Whether a data file that the card of a data set on the Hub names is its own, or one that everybody sees."""
    return place.startswith((f"hf://datasets/{name}@", "http://", "https://"))


def _places(card: Path) -> Iterator[str]:
    """All text in the `configs` of a card, which names the files of a data set. Raises `OSError` or `ValueError`."""
    if not card.exists():
        return iter(())
    content = read_bounded(card, MOST_CARD).decode("utf-8", "replace")
    if card.suffix == ".md":
        found = re.match(r"\ufeff?---\r?\n(.*?)\n---", content, re.DOTALL)
        content = found[1] if found else ""
    told = parse_yaml(content)
    named = leaves_of(told.get("configs") if isinstance(told, dict) else None)
    return (each for each in named if isinstance(each, str))
