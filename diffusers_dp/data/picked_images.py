# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of an array, which may be the map of a file, without a copy of them."""

import mmap
import warnings

import numpy as np
import torch


class PickedImages:
    """Images of an array, each read when it is asked for and not before. Of a mapped file, what was read does not stay
    in this process: the system has it, as long as nothing else needs the memory.

    Args:
        images (`np.ndarray` of uint8 or float16, shape `[n, C, H, W]`): Not written to.
        places (`np.ndarray` of int64, shape `[m]`, *optional*): Which of them; by default all.
    """

    def __init__(self, images: np.ndarray, places: np.ndarray | None = None):
        self._images, self._places, self._file = images, places, _mapped_file(images)
        self.shape = (len(images) if places is None else len(places), *images.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        """Those numbered `index`, `[k]`, as `[k, C, H, W]` in memory."""
        places = index.numpy() if self._places is None else self._places[index.numpy()]
        found = torch.from_numpy(np.asarray(self._images[places]))
        if self._file is not None:
            self._file.madvise(mmap.MADV_DONTNEED)
        return found


def stored_images(images: np.ndarray) -> PickedImages | torch.Tensor:
    """Either gives images at an index `[k]`: those of a map are read then, those in memory are shared."""
    return tensor_of(images) if _mapped_file(images) is None else PickedImages(images)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Shares memory with an array, which may be a read-only map of a file. Torch warns of that, for writing to it
    would fail; the door never does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def _mapped_file(array: np.ndarray) -> mmap.mmap | None:
    """What a read-only array is a map of, on systems that can drop its pages."""
    held = array
    while isinstance(held, np.ndarray):
        held = held.base
    mapped = isinstance(held, mmap.mmap) and not array.flags.writeable and hasattr(mmap, "MADV_DONTNEED")
    return held if mapped else None
