# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Interruptions of a run: SIGTERM, a full disk, too little memory. Nothing here loads torch.

A run survives a kill at any moment, so SIGTERM, like Ctrl-C, may raise an exception anywhere; that leaves less behind
than a kill. Two things are finished first because they are paid for: a query with the storing of its answer, and a
step of DP-SGD with a checkpoint.
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


GO_ON = "resume with the same command and --resume_from_checkpoint latest."
STOPPED = f"stopped by SIGTERM: {GO_ON}"
# No space, no quota, a file that is too large, a disk that became read-only: a second write would fail, too.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

_requested = False  # whether SIGTERM came
_unfinished = 0  # nesting depth of `uninterrupted`


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Wraps a training script's `main`: SIGTERM raises `Interrupted`, at once or at the end of an `uninterrupted`
    block. A second SIGTERM, or Ctrl-C, ends the process at once. Once another process was lost, SIGTERM is ignored
    until this one has told so and ended, because launchers then send it.

    Raises:
        Interrupted: SIGTERM came.
        UsageError: See `in_one_sentence`.
    """
    global _requested, _unfinished
    _requested, _unfinished = False, 0
    hears = threading.current_thread() is threading.main_thread()  # Python delivers signals to no other thread
    before = signal.signal(signal.SIGTERM, _stop) if hears else None
    try:
        with in_one_sentence():
            yield
    finally:
        if hears and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # so after a lost process, until the end
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Reports a lack of disk space or memory in one sentence, which does not reveal how much was requested.

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
                f"cannot be written ({os.strerror(number)}): make room, then {GO_ON}", field="output_dir"
            ) from error
        if is_memory_error(error):
            raise UsageError(
                "Memory ran out, even for the smallest part of a batch: free some, or give a smaller model or, for a "
                f"warm-up, smaller batches. If no flag changes, {GO_ON}"
            ) from error
        raise


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Wraps work that must be finished once it has started; also a decorator.

    Raises:
        Interrupted: SIGTERM came meanwhile; raised at the end.
    """
    with undisturbed():
        yield
    if _requested and not _unfinished:
        stop_now()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Wraps the last words of a run that ends anyway: SIGTERM, which launchers send to a run that is ending, changes
    nothing."""
    global _unfinished
    _unfinished += 1
    try:
        yield
    finally:
        _unfinished -= 1


def stop_requested() -> bool:
    """Tells whether SIGTERM came during an `uninterrupted` block."""
    return _requested


def stop_now(*, is_told: bool = False) -> None:
    """Raises `Interrupted` once the work that had started is finished.

    Args:
        is_told (`bool`): Whether another process of the run prints the message.
    """
    stop = Interrupted(STOPPED)
    stop.is_told = is_told
    raise stop


def _disk_error(error: Exception) -> int | None:
    """Returns the number of a disk error, also from the text of safetensors' errors."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    return number if number in DISK_ERRORS else None


def is_memory_error(error: Exception) -> bool:
    """Recognises memory errors of Python, of NumPy, and of torch on any device."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    from accelerate.utils.memory import should_reduce_batch_size  # loads torch, as the code that failed did

    return should_reduce_batch_size(error) or "could not create a memory object" in str(error)


def _stop(number: int, frame: FrameType | None) -> None:
    global _requested
    _requested = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _unfinished:
        stop_now()
