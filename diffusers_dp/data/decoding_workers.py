# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Several processes that decode images, each a new Python that knows nothing but its job.

Not a pool of `multiprocessing`: a forked child keeps the lock of the run's folder when its parent is killed, and holds
copies of what CUDA and threads left behind; a spawned one imports the training script, with torch, before it begins.
Not joblib either: its processes live on where their parent is killed, with the private images that they hold. These
end when their parent does, because nobody reads their next answer.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from ..errors import UsageError


def map_in_processes(
    function: Callable[[Any], Any], items: Sequence[Any], num_processes: int
) -> Generator[Any, None, None]:
    """`map(function, items)`, in its order, by several processes. Each takes every `num_processes`-th item, and waits
    where it is ahead of the others.

    Args:
        function (`Callable`): Is pickled once for each process.
        items (sequence): Are pickled at once.
        num_processes (`int`): With 1 or less all happens in this process.

    Raises:
        UsageError: A process ended early, for example because memory was short.
        Exception: What `function` raised.
    """
    if num_processes < 2:
        yield from map(function, items)
        return
    # The same code as here, wherever it was imported from. No file of this process is open there, above all no lock.
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    workers = []
    with ExitStack() as stack:
        for _ in range(num_processes):
            worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.enter_context(worker)
            stack.callback(worker.kill)
            workers.append(worker)
        for number, worker in enumerate(workers):
            assert worker.stdin is not None
            with suppress(OSError), worker.stdin:  # what ended early is said below
                pickle.dump((function, items[number::num_processes]), worker.stdin)
        for number in range(len(items)):
            yield _answer(workers[number % num_processes])


def _answer(worker: subprocess.Popen) -> Any:
    assert worker.stdout is not None
    try:
        failure, result = pickle.load(worker.stdout)
    except (EOFError, pickle.UnpicklingError):
        code = worker.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        raise UsageError(
            f"A process that decodes images ended early, {how}, as where memory is short: free some, or give a "
            "smaller --dataloader_num_workers."
        ) from None
    if failure is not None:
        raise failure
    return result


def serve() -> None:
    """What a process does: it reads a function and items, and writes what the function makes of each, all pickled."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent says what becomes of it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    function, items = pickle.load(sys.stdin.buffer)
    for item in items:
        failure, result = None, None
        try:
            result = function(item)
        except Exception as error:
            failure = error
        try:
            pickle.dump((failure, result), answers)
            answers.flush()
        except BrokenPipeError:  # the parent is done, or gone
            os._exit(0)
