# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs hostile cases one after the other, and tells of each when it begins, and how it ended.

python hostile_worker.py FOLDER FIRST STEP
"""

import ctypes
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path


MEMORY, SECONDS = 2 * 2**30, 60  # of one case: bytes, and time of the processor
IN_ACCESS, IN_OPEN, IN_NONBLOCK, IN_ONLYDIR = 0x1, 0x20, 0o4000, 0x01000000


class Watch:
    """Of the host's own files: the kernel tells who opens one, whichever library does."""

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self.file = libc.inotify_init1(IN_NONBLOCK)
        assert self.file >= 0, os.strerror(ctypes.get_errno())
        for path in (path for path in folder.rglob("*") if path.is_file()):
            assert libc.inotify_add_watch(self.file, os.fsencode(path), IN_ACCESS | IN_OPEN) >= 0

    def seen(self):
        try:
            return bool(os.read(self.file, 65_536))
        except BlockingIOError:
            return False


def peak_memory():
    """Bytes, since it was last asked."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) * 1024


def main(folder, first, step):
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    tempfile.tempdir = str(folder)
    import torch

    from support.hostile_cases import Honest, cases, is_refusal

    torch.set_num_threads(1)
    torch.set_num_threads = lambda number: None
    everything = list(cases().items())
    honest = Honest(folder)
    watch = Watch(honest.host)
    tell, quiet = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(quiet, number)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (own + 4 * MEMORY, resource.RLIM_INFINITY))
    for place in range(first, len(everything), step):
        name, attempt = everything[place]
        os.write(tell, (json.dumps({"place": place, "name": name}) + "\n").encode())
        case = Path(tempfile.mkdtemp(dir=folder))
        said, fault, start, used = io.StringIO(), None, time.monotonic(), time.process_time()
        peak_memory()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                attempt(honest, case)
        except BaseException as error:
            if not is_refusal(error):
                fault = f"{type(error).__name__}: {error}"[:500]
        if "Traceback" in said.getvalue():
            fault = "a traceback was printed"
        peak = peak_memory()
        if peak > MEMORY:
            fault = f"{fault or ''} took {peak / 2**30:.1f} GiB"
        if time.process_time() - used > SECONDS:
            fault = f"{fault or ''} took more than {SECONDS} s"
        if watch.seen():
            fault = f"{fault or ''} read a file of the host"
        took = time.monotonic() - start
        os.write(tell, (json.dumps({"place": place, "fault": fault, "seconds": took}) + "\n").encode())
        shutil.rmtree(case, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
