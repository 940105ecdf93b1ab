# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The standard error of this process, which C libraries write to past Python. No torch."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_standard_error() -> Iterator[None]:
    """Mutes file descriptor 2."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
