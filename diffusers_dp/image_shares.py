# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which images lie in which process: each in one, with all images of its unit."""

from collections.abc import Callable

import numpy as np

from .data import ImageArrays
from .processes import Processes


def share_of(arrays: ImageArrays, index: int, count: int) -> ImageArrays:
    """The images of process `index`: image (or unit) i lies in process i modulo `count`, as number i // `count` there.

    Where an image lies follows from its place in the data set alone, not from what it shows.
    """
    if arrays.units is None:
        mine: slice | np.ndarray = slice(index, None, count)
        units = None
    else:
        mine = arrays.units % count == index
        units = arrays.units[mine] // count
    labels = None if arrays.labels is None else arrays.labels[mine]
    return ImageArrays(arrays.images[mine], labels, arrays.readable[mine], units)


def load_share(processes: Processes, load: Callable[[], ImageArrays]) -> ImageArrays:
    """The images of this process. The first one decodes them all, once, into the run's private cache, and the others find them there: each maps
    the same files and reads its own share of them. A process alone has all.

    Args:
        processes (`Processes`): Of the run.
        load (`Callable`): `load_images` with its arguments.

    Raises:
        UsageError, IntegrityError: As `load`.
    """
    if processes.count == 1:
        return load()
    processes.on_first(lambda: len(load().images))  # of the arrays nothing is sent
    return share_of(load(), processes.index, processes.count)
