# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Several processes that decode images, each a new Python that knows nothing but its job.

Not a pool of `multiprocessing`: a forked child keeps the lock of the run's folder when its parent is killed, and holds
copies of what CUDA and threads left behind; a spawned one imports the training script, with torch, before it begins.
Not joblib either: its processes live on where their parent is killed, with the private images that they hold. These
end when their parent does, for then their input ends.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import UsageError


def map_in_processes(
    function: Callable[[Any], Any], items: Iterable[Any], num_processes: int
) -> Generator[Any, None, None]:
    """`map(function, items)`, in its order, by several processes.

    Args:
        function (`Callable`): Is pickled once for each process.
        items (iterable): Pickled one by one, never more than a few at a time.
        num_processes (`int`): With 1 or less all happens in this process.

    Raises:
        UsageError: A process ended early, for example because memory was short.
        Exception: What `function` raised.
    """
    if num_processes < 2:
        yield from map(function, items)
        return
    workers = [_Worker(function) for _ in range(num_processes)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def ask(item: Any) -> Any:
        worker = idle.get()
        try:
            return worker.ask(item)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(num_processes) as threads:
            try:
                pending: deque = deque()
                for item in items:
                    pending.append(threads.submit(ask, item))
                    if len(pending) > 2 * num_processes:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.kill()
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """One process. It reads a function and then items, and writes what the function makes of each, all pickled."""

    def __init__(self, function: Callable[[Any], Any]):
        # The same code as here, wherever it was imported from. No file of this process is open in it, above all no
        # lock.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._job: bytes | None = pickle.dumps(function)

    def ask(self, item: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            if self._job is not None:
                self._process.stdin.write(self._job)
                self._job = None
            pickle.dump(item, self._process.stdin)
            self._process.stdin.flush()
            failure, result = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._process.wait()
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            raise UsageError(
                f"A process that decodes images ended early, {how}, as where memory is short: free some, or start "
                "again on fewer cores (`taskset -c 0-3`), for each decodes in a process of its own."
            ) from None
        if failure is not None:
            raise failure
        return result

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()  # type: ignore[union-attr]
            except OSError:  # what was still to be written, to a process that is gone
                pass
        self._process.wait()


def serve() -> None:
    """What a process does, until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent says what becomes of it
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        function = pickle.load(requests)
        while True:
            item = pickle.load(requests)
            failure, result = None, None
            try:
                result = function(item)
            except Exception as error:
                failure = error
            pickle.dump((failure, result), answers)
            answers.flush()
    except (EOFError, BrokenPipeError):  # the parent is done, or gone
        os._exit(0)
