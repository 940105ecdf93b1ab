# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Programs in processes of their own, forked from one that has imported everything, for that takes seconds."""

import io
import multiprocessing
import os
import resource
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT


PATIENCE = 300  # seconds


def start(
    program: str | Path, arguments: list[Any], said: Path, environment: dict[str, str] | None = None,
    file_size: int | None = None, first: Callable[..., None] | None = None, given: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    """Starts `python program *arguments`.

    Args:
        program (`Path`): A file of Python.
        arguments (`list`): Its command line.
        said (`Path`): Takes what it writes to standard output; the same name with `.err`, to standard error.
        environment (`dict[str, str]`, *optional*): Changes the environment.
        file_size (`int`, *optional*): The most bytes that a file may have.
        first (`Callable`, *optional*): Is called in the process before the program, with `given`.
    """
    serve()
    options = (str(program), [str(each) for each in arguments], str(said), environment or {}, file_size, first, given)
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=options)
    process.start()
    return process


def serve() -> None:
    """Starts the server of forks, which imports what this process would. A process has one: that of a model's page,
    which imports less, would be that of these programs, too."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["support.imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # no fork can use a GPU that the server has seen
        ensure_running()


def _run(program, arguments, said, environment, file_size, first, given):
    for number, name in ((1, said), (2, f"{said}.err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True) for number in (1, 2)
    )
    os.environ |= environment
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    cores = sorted(os.sched_getaffinity(0))  # one of them: tiny layers wait for threads where the cores are busy
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    if first is not None:
        first(*given)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


def run(
    program: str | Path, *arguments: Any, folder: Path, count: int = 1, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, in `count` processes as `torchrun` starts them: where one fails, the others end.

    Args:
        folder (`Path`): Takes what they write.
        cwd (`Path`, *optional*): Where they run.

    Returns:
        `subprocess.CompletedProcess`: What all of them wrote, and the first exit code that is not 0.
    """
    said = [folder / f"said-{time.monotonic_ns()}-{rank}" for rank in range(count)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    several = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    processes = []
    for rank in range(count):
        environment = {**several, "RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
        environment |= {"TQDM_DISABLE": "1"}
        processes.append(start(program, [*arguments], said[rank], environment, first=os.chdir, given=(str(cwd),)))
    deadline, told = time.monotonic() + PATIENCE, False
    while any(process.is_alive() for process in processes):
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        elif not told and any(process.exitcode for process in processes):
            told = True  # once, as torchrun does: a second signal would end what is said about the first
            for process in processes:
                process.terminate()
        time.sleep(0.01)
    stdout, stderr = ("".join(Path(f"{name}{end}").read_text() for name in said) for end in ("", ".err"))
    code = next((process.exitcode for process in processes if process.exitcode), 0)
    return subprocess.CompletedProcess([program, *arguments], code, stdout, stderr)
