# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the processes of `test_image_cache.py` do, in a file of its own: they import it, and nothing slow with it."""

import errno
import os
import signal
import time
from pathlib import Path

from diffusers_dp.data.parts import Decoder


class FullDisk(Decoder):
    def __call__(self, part):
        if part[0] >= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().__call__(part)


def times_two(value: int) -> int:
    return value * 2


def say_it(value: int) -> int:
    print("noise", value, flush=True)
    return value


def stop_hard(value: int) -> int:
    os._exit(7) if value == 5 else None
    return value


def is_killed(value: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL) if value == 5 else None
    return value


def pid_then_wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(1)
