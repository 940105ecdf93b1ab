# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which images lie in which process: each in one, with all images of its unit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .data import ImageArrays
from .errors import UsageError
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


def load_share(processes: Processes, load: Callable[[], ImageArrays], cache_dir: Path) -> ImageArrays:
    """The images of this process. The first one decodes them all, once, and leaves each its share in the run's private cache until
    all have read theirs; a process alone reads them as `load` does.

    Args:
        processes (`Processes`): Of the run.
        load (`Callable`): Reads all images; called in the first process.
        cache_dir (`Path`): The run's private cache, on a disk that all machines of the run see.

    Raises:
        UsageError: As `load`; or another machine does not see `cache_dir`.
    """
    if processes.count == 1:
        return load()
    folder = cache_dir / "shares"

    def deal() -> None:
        arrays = load()
        shutil.rmtree(folder, ignore_errors=True)  # of a start that was interrupted here
        folder.mkdir(parents=True)
        for index in range(processes.count):
            share = share_of(arrays, index, processes.count)
            np.savez(folder / f"{index}.npz", **{k: v for k, v in vars(share).items() if v is not None})

    processes.on_first(deal)
    try:
        with np.load(folder / f"{processes.index}.npz") as found:
            share = ImageArrays(found["images"], found.get("labels"), found["readable"], found.get("units"))
    except FileNotFoundError:
        raise UsageError(
            f"{folder} is not seen by process {processes.index}: give an --output_dir on a disk that all machines share."
        ) from None
    processes.wait()
    processes.on_first(lambda: shutil.rmtree(folder))
    return share
