# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Durable files: a journal of JSON lines that are on disk before anybody acts on them, and synced files and folders.
No torch."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import IntegrityError


class Journal:
    """Appends durably, rewrites atomically, and notices writes by others.

    Args:
        path (`Path`): Path of the file. The first `rewrite` creates it.

    Attributes:
        size (`int`, *optional*): Bytes in the file after the last read or write of this object; `None` before either.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.size: int | None = None

    def read(self, *, repair: bool = True) -> list[Any]:
        """Returns all objects in order, or an empty list if there is no file.

        A crash during `append` leaves a last line without its newline. If that line parses, it counts. If not, it is
        dropped: `append` never returned, so nobody acted on it. Any other line that does not parse is damage.

        Args:
            repair (`bool`, defaults to `True`): Whether to rewrite a torn last line. A reader that does not own the
                file passes `False`.

        Raises:
            IntegrityError: A line is damaged, or the file is empty.
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
            with suppress(ValueError, RecursionError):
                objects.append(json.loads(torn))
        if not objects:
            raise IntegrityError(f"{self.path} is empty or damaged: restore the file, or use another --output_dir.")
        if torn and repair:
            self.rewrite(objects)  # otherwise the next line would be appended to the torn one
        return objects

    def append(self, entry: dict[str, Any]) -> None:
        """Adds one line; when this returns, file and folder are synced.

        After a failure the size of the file may be unknown; every later write is then refused.
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
        """Replaces the whole file: a crash leaves either the old one or the new one."""
        self._check_untouched()
        content = b"".join(map(_line, entries))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, content)
        self.size = len(content)

    def _check_untouched(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else None
        if size != self.size:
            raise IntegrityError(
                f"{self.path} changed since this process last wrote it (a second run, or a failed write): stop "
                "the other run and start this one again; steps that the file reserves stay spent."
            )


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, allow_nan=False).encode() + b"\n"


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file and syncs it to disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Writes `data` to `path`: a crash or power cut leaves either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_synced(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Syncs all contents of a folder to disk, at any depth, but not the folder's name."""
    for path in (folder, *folder.rglob("*")):
        sync_folder(path)  # the same call syncs a file that is open for reading


@contextmanager
def written_whole(place: Path, mode: int = 0o777) -> Iterator[Path]:
    """Yields an empty folder to fill. It then takes its place, atomically even across a power cut; an earlier folder
    there is replaced.

    What killed starts left beside it goes: temporary folders whose entries are all written by a run. Others with their
    prefix belong to somebody else.
    """
    prefix = f".{place.name}-"
    for leftover in place.parent.glob(f"{prefix}*"):
        if leftover.is_dir() and {path.name for path in leftover.iterdir()} <= {"previous", place.name}:
            shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=prefix) as temporary:
        made = Path(temporary, place.name)
        made.mkdir(mode)
        yield made
        put_in_place(made, place)


def put_in_place(made: Path, place: Path) -> None:
    """Moves a finished folder to its place, atomically even across a power cut. An earlier folder there becomes
    `previous` beside `made`; the caller removes it."""
    sync_tree(made)
    if place.exists():
        os.rename(place, made.with_name("previous"))
    os.rename(made, place)
    sync_folder(place.parent)
