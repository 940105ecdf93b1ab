# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One model in a separate process that can be ended, because a stranger's model may need unforeseen time or memory."""

import multiprocessing
import time
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from ..errors import DiffusersDPError, IntegrityError
from ..release.loading import AnyRelease
from ..sampling.drawing import Drawing
from .drawing import Drawn, Step


POLL_SECONDS = 0.1


@cache
def _processes() -> Any:
    """Returns a context whose fork server imports torch once for all models; the page never does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["diffusers_dp.app.painting"])
    return context


class Painter:
    """Loads a model and draws from it in another process.

    Args:
        released (`AnyRelease`): Release.
        require_dp (`bool`): See `load_verified`.
        seconds (`float`): Time limit for loading, and for one drawing.
        memory (`int`, *optional*): Memory limit in bytes; defaults to most of the free memory.

    Raises:
        DiffusersDPError: The model cannot be loaded within these limits; no process is left.
    """

    def __init__(self, released: AnyRelease, *, require_dp: bool, seconds: float, memory: int | None = None) -> None:
        self.released, self._seconds = released, seconds
        context = _processes()
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, released, require_dp, memory)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        found = self._receive("loaded", time.monotonic() + seconds)
        if isinstance(found, Exception):
            self.close()
            raise found

    @property
    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def watch(self, drawing: Drawing) -> Iterator[Step | Drawn]:
        """Draws; yields each step and finally `Drawn`. Closing the iterator before ends the process.

        Raises:
            UsageError: The model cannot draw this.
            IntegrityError: The process needed too much time or memory and was ended.
        """
        try:
            self._pipe.send(drawing)
        except OSError:
            raise self._ended("drawn from") from None
        end = time.monotonic() + self._seconds
        while isinstance(found := self._receive("drawn from", end), Step):
            try:
                yield found
            except GeneratorExit:
                self.close()
                raise
        if isinstance(found, Exception):
            raise found
        yield Drawn(self.released, drawing, *found)

    def close(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self, what: str, end: float) -> Any:
        try:
            found = self._pipe.poll(POLL_SECONDS)
            while not found and time.monotonic() <= end:
                found = self._pipe.poll(POLL_SECONDS)
            if time.monotonic() > end:  # a message that came too late counts as late, too
                self.close()
                raise IntegrityError(
                    f"'{self.released.name}' cannot be {what} here within {self._seconds:g} seconds (--max_seconds): "
                    "ask for less, or for another release."
                )
            return self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended(what) from None

    def _ended(self, what: str) -> DiffusersDPError:
        self.close()
        return IntegrityError(
            f"'{self.released.name}' cannot be {what} here: its process ended, as for want of memory. Choose "
            "another release."
        )


def _serve(pipe: Connection, released: AnyRelease, require_dp: bool, memory: int | None) -> None:
    from .painting import serve

    serve(pipe, released, require_dp, memory)
