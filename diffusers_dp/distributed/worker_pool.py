# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A command in several processes: the first runs it, and the others do what it hands to them. No torch, where there is
one process.

Training asks its processes the same questions at the same time (`Processes`). A command does most of its work in one
place, and has some parts that take long and know nothing of each other: images, features, classifiers. Accelerate's
`split_between_processes` would run the whole command in each process. joblib would start processes of its own, where a
launcher has started one for each GPU.
"""

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DiffusersDPError, Interrupted, ProcessLost


if TYPE_CHECKING:
    from .processes import Processes

Part = TypeVar("Part")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(days=7)  # of a process that is done, for one that draws a shard more; torch's own is minutes
GO_ON = "what is finished stays, and the same command goes on from there."
LOST = f"Another process of this command ended, see what it said: {GO_ON}"
STOPPED = f"stopped by SIGTERM, which launchers also send where another process ended: {GO_ON}"


class WorkerPool:
    """The processes of a command, as the first one sees them; without a launcher, one alone.

    Args:
        processes (`Processes`, *optional*): Of the command, where there are several.
    """

    def __init__(self, processes: "Processes | None" = None):
        self._processes = processes
        self._work: Any = None  # what the others have

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 if self._processes is None else self._processes.count

    def map(self, work: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """What `work` returns for each part, in their order, as it comes: in turns, one part for each process. All is
        sent pickled, and nothing lies on a disk on the way. Each process has its share of the cores in a turn; between
        turns the first has all of them.

        Args:
            work (`Callable`): Prints nothing that is needed; the others are not heard.
            parts (sequence): Of about the same size. Part i is done in process i modulo `count`.

        Raises:
            DiffusersDPError: What `work` raised, wherever it did; the turn is lost.
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
        """In the first process; tells the others at the end, and returns what ended the command before it was done."""
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
        """In the others, until the first one has told them so."""
        pickled, opened = b"", None

        def work(part: Any) -> Any:
            nonlocal opened
            if opened is None:  # here, where it may be refused as the work itself
                opened = pickle.loads(pickled)
            return opened(part)

        _use_cores(processes.local_count)
        while isinstance(order := processes.on_first(lambda: None), tuple):  # what to do: the first one says it
            sent, turn = order
            if sent is not None:
                pickled, opened = sent, None
            try:
                with _silence():
                    processes.share(work, turn)
            except ProcessLost:
                raise
            except DiffusersDPError:
                pass  # the first has it, too, and says what follows
        return order


def lead(command: Callable[[WorkerPool], None]) -> None:
    """Runs a command in the first process; the others do the parts that it maps, and end with its exit code.

    Args:
        command (`Callable`): Gets the pool.

    Raises:
        DiffusersDPError: What `command` raised, in all; `is_told` where the first one says so.
        ProcessLost: Another process ended.
        Interrupted: SIGTERM came, to one of several.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        command(WorkerPool())
        return
    processes = _start()
    pool = WorkerPool(processes)
    refused = pool._lead(processes, command) if processes.is_first else pool._serve(processes)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # where one ends before the others, launchers hurry these
    processes.first_goes_on()
    if refused is not None:
        refused.is_told = not processes.is_first
        raise refused


def _start() -> "Processes":
    import torch
    from accelerate import PartialState

    from .processes import Processes

    # What is sent lies in memory: gloo, also where there are GPUs.
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
    """All cores, or the part of one of as many processes: launchers leave each one thread."""
    import torch
    from threadpoolctl import threadpool_limits

    from .processes import cores

    threads = max(1, cores() // sharing)
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # of NumPy's and scikit-learn's


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
