# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger on disk: a header for each release, its rows, and a hash chain through all lines. No torch.

A single run has its own file. Releases of one data set share a file with the data set's name, so that their costs add
up; each has a header, and each row names its release.
"""

import copy
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ..errors import IntegrityError, UsageError
from ..files.journal import Journal
from ..verify import FORMAT
from .ledger_row import LedgerRow


_OURS = ("chain", "release_id")  # fields of the file, not of the query
_MUTABLE = ("chain", "steps_executed", "state")


class Bound(NamedTuple):
    """A promise: all releases of a data set together cost at most `epsilon` at `delta`."""

    epsilon: float
    delta: float


@dataclass
class ReleaseRows:
    """The queries of one release, in order of asking.

    Args:
        header (`dict`): Its header.
        rows (`list[dict]`): As JSON values.
        asked (`list[LedgerRow]`): The same rows.
    """

    header: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    asked: list[LedgerRow] = field(default_factory=list)

    @property
    def stream(self) -> LedgerRow | None:
        """A row of the one mechanism whose steps have positions, if one was asked."""
        return next((row for row in self.asked if row.mechanism.one_stream), None)

    @property
    def next_step(self) -> int:
        """The position of its next step."""
        return sum(row.steps for row in self.asked if row.mechanism.one_stream)


class LedgerFile:
    """The rows of one release, and of the others in the same file.

    Args:
        path (`Path`, *optional*): Path of the file; `None` keeps the rows in memory.
        header (`dict`): Header of this release; an existing release with this name must have the same one. Its
            `dataset_id` and `release_id` are `None` if the file belongs to a single run.
        others (sequence of `ReleaseRows`): Other releases of the data set, if there is no file.

    Attributes:
        own (`ReleaseRows`): This release, not copied; the ledger returns copies.
        others (`list[ReleaseRows]`): Other releases, in the order of their starts.

    Raises:
        IntegrityError: The file is damaged, edited, or of another version, data set or kind; or this release had
            another header.
        UsageError: Another process writes to the data set's ledger.
    """

    def __init__(self, path: Path | None, header: dict[str, Any], others: Sequence[ReleaseRows] = ()) -> None:
        beside = path
        path = None if path is None else path.resolve()  # so that a rewrite does not replace a link
        self.path, self.header = path, header
        self.own = ReleaseRows(header)
        self.others = list(others)
        self._journal: Journal | None = None if path is None else Journal(path)
        self._lines: list[dict[str, Any]] = []
        self._lock: TextIO | None = None
        self._closed = False
        if path is None or beside is None or self._journal is None:
            return
        if header["dataset_id"] is not None:
            self._lock = _hold(path)
        try:
            with _usable(path):
                self._lines = self._journal.read()
            releases = _releases(self._lines, path, header["dataset_id"])
            _check_units(releases, header["unit_of_privacy"], path)
            self.others = [each for each in releases if each.header["release_id"] != header["release_id"]]
            for release in releases:
                if release not in self.others:
                    self._check_header(release.header)
                    self.own = release
        except BaseException:
            self.close()
            raise

    def append(self, row: dict[str, Any], asked: LedgerRow) -> None:
        """Adds a row; when this returns, the row is on disk. Raises `ValueError` after `close`."""
        self._refuse_closed()
        if self._journal is not None:
            new = [row]
            if self.header["dataset_id"] is not None:
                row["release_id"] = self.header["release_id"]
            if not self.own.rows:  # the header is written with the first row
                new = [dict(self.header), row]
            chain = self._lines[-1]["chain"] if self._lines else ""
            for line in new:
                chain = line["chain"] = _link(chain, line)
            if len(new) == 1:
                self._journal.append(row)
            else:
                self._journal.rewrite([*self._lines, *new])
            self._lines += new
        self.own.rows.append(row)
        self.own.asked.append(asked)

    def rewrite(self) -> None:
        """Writes the current counts of executed steps to disk. Raises `ValueError` after `close`."""
        self._refuse_closed()
        if self._journal is not None:
            self._journal.rewrite(self._lines)

    def close(self) -> None:
        """Lets other processes write to the data set's ledger, as the end of this process does."""
        self._closed = True
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _refuse_closed(self) -> None:
        """Without the lock, another release may have written rows that this object does not know."""
        if self._closed:
            raise ValueError("The ledger was closed: open it again to ask.")

    def _check_header(self, found: dict[str, Any]) -> None:
        there, here = _flat(found), _flat(self.header)
        for key in (*here, *there):
            if key not in there or key not in here or there[key] != here[key]:
                raise IntegrityError(
                    f"{self.path} was written with {key} = {there.get(key)!r}, but this run has {here.get(key)!r}: "
                    "use the same settings, or another --output_dir."
                )


def other_releases(
    path: Path, *, dataset_id: str | None, release_id: str, unit_of_privacy: str = "image"
) -> list[ReleaseRows]:
    """Reads the other releases of a data set, for planning, without a lock and without changing the file.

    Raises:
        IntegrityError: See `LedgerFile`.
    """
    with _usable(path):
        lines = Journal(path).read(repair=False)
    releases = _releases(lines, path, dataset_id)
    _check_units(releases, unit_of_privacy, path)
    return [release for release in releases if release.header["release_id"] != release_id]


def bounds_of(headers: Iterable[dict[str, Any]]) -> list[Bound]:
    """Collects the bounds that were promised to the releases of a data set, each at the delta of its release.

    Sorts by delta. Leaves out bounds that another one implies by an epsilon and a delta that are no larger.

    Args:
        headers (iterable of `dict`): Headers of the releases.
    """
    given = [
        Bound(head["dataset_epsilon"], head["target_delta"]) for head in headers if head["dataset_epsilon"] is not None
    ]
    bounds: list[Bound] = []
    for bound in sorted(given, key=lambda bound: (bound.delta, bound.epsilon)):
        if not bounds or bound.epsilon < bounds[-1].epsilon:
            bounds.append(bound)
    return bounds


def check_dataset_id(name: str) -> str:
    """Returns the name of a data set; raises `UsageError` if it cannot name a file."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(
            f"is {name!r}; give a name of letters, digits, '.', '_' and '-' that begins with a letter or a digit.",
            field="dataset_id",
        )
    return name


def facts_of(row: dict[str, Any]) -> dict[str, Any]:
    """Copies a row without the fields of its file."""
    return copy.deepcopy({key: value for key, value in row.items() if key not in _OURS})


def _releases(lines: list[Any], path: Path, dataset_id: str | None) -> list[ReleaseRows]:
    """Returns the releases in a file after every check that needs no settings."""
    releases: dict[str | None, ReleaseRows] = {}
    chain = ""
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or (number == 1) > (line.get("kind") == "header"):
            raise IntegrityError(f"Line {number} of {path} is not a row of a ledger: restore the file.")
        if line.get("kind") == "header" and line.get("format") != FORMAT:
            raise IntegrityError(
                f'{path} does not state "format": "{FORMAT}": continue with the version that wrote it, or start again '
                "in another --output_dir."
            )
        chain = _link(chain, line)
        if line.get("chain") != chain:
            raise IntegrityError(f"Line {number} of {path} was edited, or lines before it are gone: restore the file.")
        if line.get("kind") == "header":
            if line["release_id"] in releases:
                raise IntegrityError(
                    f"Line {number} of {path} is not the header of another release: restore the file."
                )
            _check_owner(line, path, dataset_id)
            releases[line["release_id"]] = ReleaseRows(line)
        else:
            release = releases.get(line.get("release_id"))
            if release is None:
                raise IntegrityError(f"Line {number} of {path} is not a row of a ledger: no release has its id.")
            release.asked.append(_checked(line, release, path))
            release.rows.append(line)
    return list(releases.values())


def _check_owner(header: dict[str, Any], path: Path, dataset_id: str | None) -> None:
    names = header["dataset_id"], dataset_id
    theirs, ours = ("one run alone" if name is None else f"data set {name!r}" for name in names)
    if theirs != ours:
        raise IntegrityError(
            f"{path} is the ledger of {theirs}, not of {ours}: give the right --dataset_id, or another --ledger_dir."
        )


def _check_units(releases: Sequence[ReleaseRows], unit: str, path: Path) -> None:
    for release in releases:
        other = release.header["unit_of_privacy"]
        if other != unit and release.header["dataset_id"] is not None:
            raise IntegrityError(
                f"An earlier release in {path} protects each {other}, and this one each {unit}; their costs do not "
                "add up: give the same --unit_column."
            )


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raises `UsageError` if a data set's ledger cannot be opened."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path.parent} cannot be used ({error.strerror}): give a folder for ledgers.", field="ledger_dir"
        ) from None


def _checked(row: dict[str, Any], release: ReleaseRows, path: Path) -> LedgerRow:
    header, number = release.header, len(release.rows)
    try:
        asked = LedgerRow.read(row)
        sound = row["id"] == number and row["state"] in ("reserved", "executed")
        sound = sound and 0 <= row["steps_executed"] <= row["steps_reserved"]
        sound = sound and row["dataset_size"] == header["num_images"]
        sound = sound and asked.mechanism.has_noise == (header["target_epsilon"] != "inf")
        # A piece of a stream starts where the last one ended; other rows have no position.
        sound = sound and row.get("first_step") == (release.next_step if asked.mechanism.one_stream else None)
        stream = release.stream if asked.mechanism.one_stream else None
        sound = sound and (stream is None or stream.mechanism == asked.mechanism and stream.facts == asked.facts)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise IntegrityError(f"Row {number} of {path} is not a row of a ledger: {error}") from error
    if not sound:
        raise IntegrityError(f"Row {number} of {path} contradicts itself or its place: restore the file.")
    return asked


def _link(chain: str, line: dict[str, Any]) -> str:
    facts = {key: value for key, value in line.items() if key not in _MUTABLE}
    return hashlib.sha256((chain + json.dumps(facts, sort_keys=True)).encode()).hexdigest()


def _flat(header: dict[str, Any]) -> dict[str, Any]:
    header = {key: value for key, value in header.items() if key != "chain"}
    facts = header.pop("public_facts", None)
    return {**header, **{f"public_facts.{key}": value for key, value in dict(facts or {}).items()}}


def _hold(path: Path) -> TextIO:
    """Locks a data set's ledger. The lock ends with the file object, or with the process."""
    with _usable(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(path.with_name(path.name + ".lock"), "a+", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read(20)
        lock.close()
        raise UsageError(
            f"{path} is in use by process {pid}: wait for that run, because releases of a data set share the ledger."
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
