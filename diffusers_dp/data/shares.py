# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which images lie in which process: each in one, with all images of its unit."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np

from ..distributed.processes import Processes
from .images import ImageArrays, open_images
from .picked_images import PickedImages


def share_of(arrays: ImageArrays, index: int, count: int) -> ImageArrays:
    """The images of process `index`: image (or unit) i lies in process i modulo `count`, as number i // `count` there.

    Where an image lies follows from its place in the data set alone, not from what it shows.
    """
    if arrays.units is None:
        mine: slice | np.ndarray = slice(index, None, count)
        images, units = arrays.images[mine], None
    else:
        mine = np.flatnonzero(arrays.units % count == index)
        images = cast(np.ndarray, PickedImages(arrays.images, mine))  # for the door, which takes it for one
        units = arrays.units[mine] // count
    labels = None if arrays.labels is None else arrays.labels[mine]
    ids = None if arrays.ids is None else arrays.ids[mine]
    return ImageArrays(images, labels, arrays.readable[mine], units, arrays.made_of, ids)


def load_share(processes: Processes, load: Callable[[], ImageArrays], cache_dir: str | Path) -> ImageArrays:
    """The images of this process. The first one decodes them all, once, into the run's private cache, and the others
    find them there: each maps the same files and reads its own share of them. A process alone has all.

    The others do not look at the data set. Where it lies on a disk of each machine, its files may be dated, or be,
    otherwise there; what decoded it anew would replace the files that all have mapped, and could count an image twice.

    Args:
        processes (`Processes`): Processes of the run.
        load (`Callable`): `load_images` with its arguments.
        cache_dir (`str` or `Path`): The last of these, which all processes see.

    Raises:
        UsageError: As `load`, or the cache is not to be seen from here.
        IntegrityError: As `load`.
    """
    if processes.count == 1:
        return load()
    made_of = processes.on_first(lambda: load().made_of)  # of the arrays nothing is sent
    return share_of(open_images(cache_dir, str(made_of)), processes.index, processes.count)
