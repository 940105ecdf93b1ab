# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Environment variables of launchers, cores, and the choice of the process that reports an error. No torch."""

import io
import os
import select
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version

from ..errors import DiffusersDPError, Interrupted


DEVICE = "/dev/nvidia0"
TELLING = timedelta(seconds=10)
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")


def number_of(names: Sequence[str], default: int) -> int:
    """Returns the value of the first of these variables that is set to 0 or more, or the default."""
    numbers = (int(os.environ.get(name, -1)) for name in names)
    return next((number for number in numbers if number >= 0), default)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu() -> bool:
    """Tells whether torch would find an NVIDIA GPU, by the driver's first device and the build of torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or os.environ.get("ACCELERATE_USE_CPU") == "true"
    return os.path.exists(DEVICE) and not hidden and not version("torch").endswith("+cpu")


def is_launched() -> bool:
    """Tells whether a launcher may have started this process, or variables configure Accelerate (it then decides)."""
    return any(name in SIZES or name.startswith("ACCELERATE_") for name in os.environ)


def let_threads_sleep() -> None:
    """Makes waiting threads of torch release their cores, unless the environment configures this. Otherwise a step
    beside other jobs takes several times as long. Call this before torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def escape_output() -> None:
    """Makes standard output escape a name that its character set lacks. Otherwise a run would end there."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def leave(code: int) -> None:
    """Ends this process with that exit code; returns where it is 0 and nothing can hide it. Torch's threads can abort
    the interpreter's end: a launcher would end the run for it, or hide the exit code."""
    let_go_of_closed_pipes()
    if number_of(RANKS, 0) > 0 or (code and number_of(SIZES, 1) > 1):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def closed_pipes() -> list[int]:
    """Those of standard output and error that are a pipe which was closed at its other end."""
    try:
        asked = select.poll()
        for stream in (sys.stdout, sys.stderr):
            asked.register(stream.fileno(), 0)
        return [number for number, event in asked.poll(0) if event & select.POLLERR]
    except (AttributeError, OSError, ValueError):  # no such call, or no such file
        return []


def let_go_of_closed_pipes() -> bool:
    """What is still printed goes nowhere: else the interpreter tries again at its end. Returns whether there were
    any."""
    closed = closed_pipes()
    for number in closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return bool(closed)


def tell(error: DiffusersDPError | Interrupted) -> None:
    """Prints an error to stderr, once if all processes raise the same error or end because one did."""
    let_go_of_closed_pipes()
    everywhere = not _have_met() and number_of(LOCAL_RANKS, 0) > 0  # an error of flags, which all processes read
    if everywhere or error.is_told:
        return
    if error.exit_code != Interrupted.exit_code or _is_first_to_tell():
        print(f"error: {error}", file=sys.stderr)


def _have_met() -> bool:
    """Tells whether the processes of the run were ever connected. One that has not loaded torch was not."""
    if "torch" not in sys.modules:
        return False
    from torch import distributed

    return distributed.is_initialized()


def _is_first_to_tell() -> bool:
    """Tells whether this process is the first to report SIGTERM or a lost process; each notices these on its own.

    The processes can no longer communicate. Their store still exists, unless it was in the first process and that has
    ended."""
    if not _have_met():
        return True
    from torch import distributed

    try:
        store = distributed.distributed_c10d._get_default_store()
        store.set_timeout(TELLING)
        return bool(store.add("diffusers_dp_told", 1) == 1)
    except RuntimeError:  # better twice than never
        return True
