# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A disk that keeps nothing but what was synced, and what a process draws."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffusers_dp.methods.registry import METHODS
from diffusers_dp.privacy import sensitive
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support import forked
from support.places import ROOT


class Disk:
    """What a power cut would leave of a folder: names of the last sync of their folder, contents of the last sync of
    their file; a name whose file was never synced leads to an empty file. `os.fsync` is watched while `watched` lasts.

    Args:
        root (`Path`): The folder; its own name is taken for synced.
        before_sync (`Callable`, *optional*): Is called before each sync takes effect.
    """

    def __init__(self, root: Path, before_sync: Callable[[], None] = lambda: None):
        self.root = root
        self.before_sync = before_sync
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._held: list[int] = []  # keeps numbers of removed files from being given to others
        self._sync = os.fsync

    @contextlib.contextmanager
    def watched(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._fsync)
            try:
                yield self
            finally:
                for descriptor in self._held:
                    os.close(descriptor)

    def state(self) -> tuple:
        """All that is durable, as nested tuples: to compare, and to write elsewhere."""
        return self._state(self.root.stat().st_ino, True)

    def _state(self, number: int, is_folder: bool) -> Any:
        if not is_folder:
            return self._contents.get(number, b"")
        names = self._names.get(number, {})
        return tuple((name, self._state(*names[name])) for name in sorted(names))

    def _fsync(self, descriptor: int) -> None:
        self.before_sync()
        self._sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        number = os.fstat(descriptor).st_ino
        self._held.append(os.dup(descriptor))
        if path.is_dir():
            entries = list(os.scandir(path))
            self._names[number] = {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}
            # As good as a sync of each: a folder's number is not given to another while we look.
            self._held += [os.open(entry.path, os.O_RDONLY) for entry in entries]
        else:
            self._contents[number] = path.read_bytes()


def write_state(state: tuple, folder: Path) -> None:
    """Writes what `Disk.state` returned."""
    folder.mkdir()
    for name, content in state:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            write_state(content, folder / name)


def watch(note: Callable[[str], Any], replace: Callable[[Any, str, Any], None]) -> None:
    """Notes what a process draws and when it has taken a step, from outside of the library.

    Args:
        note (`Callable`): Is given `"step"`, or the first numbers of a draw of noise before they are scaled, in
            hexadecimal.
        replace (`Callable`): `setattr`, or that of a `MonkeyPatch`.
    """
    normal, typed, try_loss = PrivateGenerator.normal, sensitive._typed, sensitive.try_loss
    trying: list[bool] = []  # a loss is tried on public noise, with a public generator

    def noted_normal(generator, shape, std, device="cpu"):
        noise = normal(generator, shape, std, device)
        if noise.numel() >= 4 and not trying:  # fewer may agree by chance
            note((noise / std).flatten()[:4].cpu().numpy().tobytes().hex())
        return noise

    def noted_step(*arguments, **options):
        note("step")
        return typed(*arguments, **options)

    def tried(*arguments, **options):
        trying.append(True)
        try:
            return try_loss(*arguments, **options)
        finally:
            trying.pop()

    replace(sensitive, "try_loss", tried)
    replace(PrivateGenerator, "normal", noted_normal)
    replace(sensitive, "_typed", noted_step)


def start(method: str, flags: list[str], said: Path, file_size: int | None = None, drawn: Path | None = None) -> Any:
    """A training script in a process of its own, as `forked.start` has it.

    Args:
        method (`str`): Of which script.
        flags (`list[str]`): Its command line.
        said (`Path`): Takes what it writes to standard output; `forked.start` says where errors go.
        file_size (`int`, *optional*): The most bytes that a file may have.
        drawn (`Path`, *optional*): Takes a line for each draw of noise and each step, as `watch` notes them.
    """
    noted = {} if drawn is None else {"first": _note_in, "given": (str(drawn),)}
    return forked.start(ROOT / str(METHODS[method].script), flags, said, file_size=file_size, **noted)


def _note_in(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    watch(lambda line: os.write(file, f"{line}\n".encode()), setattr)
