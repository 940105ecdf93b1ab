# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Memory: how much is free, how much a computation needs, and how to keep it between steps."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from ..files.standard_error import silent_standard_error


CGROUP, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's numbers of these parameters (malloc.h)


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that a training step frees, for the next step.

    glibc returns large blocks to the system, which zeroes every page again. On a CPU this took up to a third of the
    time of a step, with or without privacy. With this setting the process stays as large as its largest step.

    Returns:
        `bool`: False if the C library has no such setting (macOS, musl); nothing is changed there.
    """
    if not sys.platform.startswith("linux") or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return False
    return bool(libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def free_bytes(device: torch.device) -> int:
    """Returns the free memory in bytes: of the GPU, or of this machine within the limits of this process's containers
    (cgroup v2)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    own = OWN_CGROUP.read_text().partition("0::")[2].strip() if OWN_CGROUP.exists() else ""
    folder = CGROUP / own.lstrip("/")
    for group in (folder, *folder.parents):
        try:
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            free = min(free, limit - used + int(statistics["inactive_file"]))
        except (OSError, ValueError, KeyError):  # no such container, or no limit ("max")
            continue
    return free


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Measures the peak of live bytes that `step` allocates through torch."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with (
        silent_standard_error(),  # torch's profiler tells of its starts and stops there
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        step()
    live = peak = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
