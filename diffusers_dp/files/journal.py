# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A file of JSON objects, one per line, that is on disk before anybody acts on it; and files and folders that are on
disk. No torch."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import IntegrityError


class Journal:
    """Appends durably, rewrites atomically, and notices when somebody else wrote.

    Args:
        path (`Path`): the file. It appears with the first `rewrite`.

    Attributes:
        size (`int`, *optional*): bytes in the file after our last read or write; `None` while we know of no file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.size: int | None = None

    def read(self, *, repair: bool = True) -> list[Any]:
        """All objects, from the first line; nothing if there is no file.

        A last line without its newline is what a crash leaves in mid-append. If it parses, it counts. If it does not,
        `append` never returned from it, so that nobody acted upon it, and it is dropped. Any other line that does not
        parse is damage.

        Args:
            repair (`bool`, defaults to `True`): Write a torn last line anew; a reader that does not own the file
                leaves it.

        Raises:
            IntegrityError: if a line is damaged, or the file is empty.
        """
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        self.size = len(content)
        *lines, torn = content.split(b"\n")
        objects = []
        for number, line in enumerate(lines, start=1):
            try:
                objects.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise IntegrityError(f"Line {number} of {self.path} is damaged: restore the file.") from error
        if torn:
            try:
                objects.append(json.loads(torn))
            except (ValueError, RecursionError):
                pass
        if not objects:
            raise IntegrityError(f"{self.path} is empty or damaged: restore the file, or use another --output_dir.")
        if torn and repair:
            self.rewrite(objects)  # else the next line would be appended to the torn one
        return objects

    def append(self, entry: dict[str, Any]) -> None:
        """Adds one line; when this returns, file and directory are synced.

        After a failure the file may differ from what we know, and then every later write is refused.
        """
        self._check_untouched()
        line = _line(entry)
        with open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path.parent)
        self.size = (self.size or 0) + len(line)

    def rewrite(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replaces the whole file: after a crash there is either the old one or the new one."""
        self._check_untouched()
        content = b"".join(map(_line, entries))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, content)
        self.size = len(content)

    def _check_untouched(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else None
        if size != self.size:
            raise IntegrityError(
                f"{self.path} changed since this process last wrote it (a second run, or a write that failed): stop "
                "the other run and start this one again; what the file reserves stays spent."
            )


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, allow_nan=False).encode() + b"\n"


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file, and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`: after a crash or a power cut there is either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_synced(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Wait until the disk has all that is in a folder, at any depth; its own name not yet."""
    for path in (folder, *folder.rglob("*")):
        sync_folder(path)  # opened for reading, a file is synced by the same call


def remove_leftovers(folder: Path, prefix: str, made: str) -> None:
    """Removes what starts that were killed before [`put_in_place`] have left in `folder`: hidden folders that hold
    nothing but what a run puts there. Others of that prefix are somebody else's.

    Args:
        prefix (`str`): What their names begin with.
        made (`str`): What the finished folder is called.
    """
    for leftover in folder.glob(f"{prefix}*"):
        if leftover.is_dir() and {path.name for path in leftover.iterdir()} <= {"saved", "previous", made}:
            shutil.rmtree(leftover)


def put_in_place(made: Path, place: Path) -> None:
    """Give a finished folder its name, under which it is there whole or not at all, also after a power cut. An earlier
    one becomes `previous` beside `made`, which whoever made it removes."""
    sync_tree(made)
    if place.exists():
        os.rename(place, made.with_name("previous"))
    os.rename(made, place)
    sync_folder(place.parent)
