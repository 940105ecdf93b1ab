# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What ends a run before it is done, and what that costs: SIGTERM, a full disk, lost steps. Nothing here loads torch.

A run survives being killed at any moment, so SIGTERM may end it wherever it is, as Ctrl-C does; an exception that
unwinds the stack leaves less behind than a kill. Two things are finished first, for they were paid for: a question
with the storing of its answer, and a step of DP-SGD, with a checkpoint.
"""

import contextlib
import errno
import os
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from ..errors import DiffusersDPError, Interrupted, UsageError
from .launcher import closed_pipes


GO_ON = "the same command and --resume_from_checkpoint latest go on with the run."
STOPPED = f"stopped by SIGTERM: {GO_ON}"
# No space, no quota, a file larger than allowed, a disk that turned read-only: to write again would fail again.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

_requested = False  # SIGTERM came
_unfinished = 0  # how many `uninterrupted` the process is in


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Around a training script's `main`: SIGTERM raises `Interrupted`, at once or at the end of what is
    `uninterrupted`. A second one, or Ctrl-C, ends the process at once.

    Raises:
        Interrupted: SIGTERM came.
        UsageError: See `in_one_sentence`.
    """
    global _requested, _unfinished
    _requested, _unfinished = False, 0
    hears = threading.current_thread() is threading.main_thread()  # Python delivers signals to no other
    before = signal.signal(signal.SIGTERM, _stop) if hears else None
    try:
        with in_one_sentence():
            yield
    finally:
        if hears:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """What the machine lacks is said in one sentence, which does not tell how much was asked for.

    Raises:
        UsageError: A file could not be written, for the disk is full; or memory was too short.
        Interrupted: Whoever read the standard output is gone.
    """
    try:
        yield
    except (DiffusersDPError, Interrupted):
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and closed_pipes():
            raise Interrupted(f"stopped by a closed pipe, to which this was printed: {GO_ON}") from error
        number = _disk_error(error)
        if number is not None:
            raise UsageError(
                f"--output_dir cannot be written ({os.strerror(number)}): make room, then {GO_ON}"
            ) from error
        if _is_memory_error(error):
            raise UsageError(
                "Memory is too short, even for the smallest part of a batch: free some, or give a smaller model, or, "
                f"for a warm-up, smaller batches; where no flag changes, {GO_ON}"
            ) from error
        raise


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Around what is to be finished once it has begun; also a decorator.

    Raises:
        Interrupted: At the end, if SIGTERM came meanwhile.
    """
    global _unfinished
    _unfinished += 1
    try:
        yield
    finally:
        _unfinished -= 1
    if _requested and not _unfinished:
        stop_now()


def stop_requested() -> bool:
    """Whether SIGTERM came, in what is `uninterrupted`."""
    return _requested


def stop_now(*, is_told: bool = False) -> None:
    """Raises `Interrupted`: what was begun is finished.

    Args:
        is_told (`bool`): Another process of the run says so.
    """
    stop = Interrupted(STOPPED)
    stop.is_told = is_told
    raise stop


def _disk_error(error: Exception) -> int | None:
    """Its number, also out of the text in which safetensors hides it."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    return number if number in DISK_ERRORS else None


def _is_memory_error(error: Exception) -> bool:
    """Of Python, of NumPy, or of torch on any device."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    from accelerate.utils.memory import should_reduce_batch_size  # with torch, which such an error has loaded

    return should_reduce_batch_size(error) or "could not create a memory object" in str(error)


def _stop(number: int, frame: FrameType | None) -> None:
    global _requested
    _requested = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _unfinished:
        stop_now()
