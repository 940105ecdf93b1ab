# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A command in several processes: the first runs it and passes work to the others. No torch if there is one process.

In training all processes make the same calls at the same time (`Processes`). A command does most work in one place,
with some long, independent parts: images, features, classifiers. Accelerate's `split_between_processes` would run the
whole command in each process. joblib would start further processes although a launcher has started one per GPU.
"""

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DiffusersDPError, Interrupted, ProcessLost
from .launcher import cores


if TYPE_CHECKING:
    from .processes import Processes

Part = TypeVar("Part")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(days=7)  # for a process that still draws a shard; torch's default is minutes
GO_ON = "finished parts are kept; resume with the same command."
LOST = f"Another process of this command ended, see its message: {GO_ON}"
STOPPED = f"stopped by SIGTERM, which launchers also send if another process ended: {GO_ON}"


class WorkerPool:
    """The processes of a command, as seen by the first one; without a launcher there is one.

    Args:
        processes (`Processes`, *optional*): Processes of the command, if there are several.
    """

    def __init__(self, processes: "Processes | None" = None):
        self._processes = processes
        self._work: Any = None  # the work that the others last received

    @property
    def count(self) -> int:
        """Number of processes."""
        return 1 if self._processes is None else self._processes.count

    def map(self, work: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Calls `work` on each part and yields the results in order, in turns of one part per process. Everything is
        sent pickled, in memory. During a turn each process has its share of the cores; between turns the first has all
        of them.

        Args:
            work (`Callable`): Function of a part. Its output is silenced in the other processes.
            parts (sequence): Parts of about equal size. Process i modulo `count` works on part i.

        Raises:
            DiffusersDPError: An error of `work` in any process; the turn is lost.
            ProcessLost: Another process ended.
        """
        if self._processes is None:
            yield from map(work, parts)
            return
        for start in range(0, len(parts), self.count):
            turn = parts[start : start + self.count]
            sent = None if work is self._work else pickle.dumps(work)
            self._work = work
            self._processes.on_first(lambda: (sent, turn))
            _use_cores(self._processes.local_count)
            try:
                results = self._processes.share(work, turn)
            finally:
                _use_cores()
            yield from results

    def _lead(self, processes: "Processes", command: Callable[["WorkerPool"], None]) -> DiffusersDPError | None:
        """Runs the command in the first process; at the end sends the others its error, if any, and returns it."""
        refused = None
        try:
            command(self)
        except ProcessLost:
            raise
        except DiffusersDPError as error:
            refused = error
        processes.on_first(lambda: refused)
        return refused

    def _serve(self, processes: "Processes") -> DiffusersDPError | None:
        """Works in the other processes until the first one ends."""
        pickled, opened = b"", None

        def work(part: Any) -> Any:
            nonlocal opened
            if opened is None:  # unpickled here, so that its errors are handled like those of the work
                opened = pickle.loads(pickled)
            return opened(part)

        _use_cores(processes.local_count)
        while isinstance(order := processes.on_first(lambda: None), tuple):  # the first process sends the work
            sent, turn = order
            if sent is not None:
                pickled, opened = sent, None
            try:
                with _silence():
                    processes.share(work, turn)
            except ProcessLost:
                raise
            except DiffusersDPError:
                pass  # the first process has the error, too, and decides
        return order


def lead(command: Callable[[WorkerPool], None]) -> None:
    """Runs a command in the first process; the others work on the parts that it maps, and end with its exit code.

    Args:
        command (`Callable`): Function of the pool.

    Raises:
        DiffusersDPError: An error of `command`, raised in all; `is_told` if the first process prints it.
        ProcessLost: Another process ended.
        Interrupted: SIGTERM came to one of several processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        command(WorkerPool())
        return
    processes = _start()
    pool = WorkerPool(processes)
    refused = pool._lead(processes, command) if processes.is_first else pool._serve(processes)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers send it to the others once one has ended
    processes.first_goes_on()
    if refused is not None:
        refused.is_told = not processes.is_first
        raise refused


def _start() -> "Processes":
    import torch
    from accelerate import PartialState

    from .processes import Processes

    # Messages are in host memory, so the backend is gloo even with GPUs.
    state = PartialState(cpu=True, timeout=LONGEST_WAIT)
    if torch.cuda.is_available():
        torch.cuda.set_device(state.local_process_index % torch.cuda.device_count())
    processes = Processes(state, lost=LOST)
    _use_cores()

    def stop(number: int, frame: Any) -> None:
        stopped = Interrupted(STOPPED)
        stopped.is_told = not processes.is_first
        raise stopped

    signal.signal(signal.SIGTERM, stop)
    return processes


def _use_cores(sharing: int = 1) -> None:
    """Uses all cores, or one process's part of them; launchers set one thread per process."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = max(1, cores() // sharing)
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # for NumPy and scikit-learn


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
