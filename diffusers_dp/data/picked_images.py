# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of an array, which may be the map of a file, without a copy of them."""

import contextlib
import mmap
import warnings
from typing import Any

import numpy as np
import torch


class PickedImages:
    """Images of an array, each read when it is asked for and not before. What was read from a read-only map of a file
    does not stay in this process, on Linux: the system has it, as long as nothing else needs the memory.

    Args:
        images (`np.ndarray` of uint8 or float16, shape `[n, C, H, W]`): Not written to.
        places (`np.ndarray` of int64, shape `[m]`, *optional*): Which of them; by default all.
    """

    def __init__(self, images: np.ndarray, places: np.ndarray | None = None):
        self._images, self._places, self._file = images, places, _mapped_file(images)
        self.shape = (len(images) if places is None else len(places), *images.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self[torch.arange(0)].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        """Those numbered `index`, `[k]`, as `[k, C, H, W]` in memory."""
        places = index.numpy() if self._places is None else self._places[index.numpy()]
        found = torch.from_numpy(np.asarray(self._images[places]))
        if self._file is not None:
            with contextlib.suppress(OSError):  # pages that are locked stay
                self._file.madvise(mmap.MADV_DONTNEED)
        return found


def stored_images(images: np.ndarray) -> PickedImages | torch.Tensor:
    """Either gives images at an index `[k]`: those of a read-only map are read then, others are shared."""
    return tensor_of(images) if _mapped_file(images) is None else PickedImages(images)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Shares memory with an array, which may be a read-only map of a file. Torch warns of that, for writing to it
    would fail; the door never does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def _mapped_file(array: np.ndarray) -> mmap.mmap | None:
    """The map that an array is of, on systems that can drop its pages. One that may be written to is none: of a
    private one, that would lose what was written, whatever the array says."""
    held: Any = array
    while isinstance(held, np.ndarray):
        held = held.base
    if isinstance(held, mmap.mmap) and memoryview(held).readonly and hasattr(mmap, "MADV_DONTNEED"):
        return held
    return None
