# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Some images of a file that is mapped, without a copy of them."""

import numpy as np
import torch


class PickedImages:
    """Some images of a memory map, each read when it is asked for and not before.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`): The map.
        places (`np.ndarray` of int64, shape `[m]`): Which of them.
    """

    def __init__(self, images: np.ndarray, places: np.ndarray):
        self._images, self._places = images, places
        self.shape = (len(places), *images.shape[1:])

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        """Those numbered `index`, `[k]`, as uint8 `[k, C, H, W]` in memory."""
        return torch.from_numpy(np.asarray(self._images[self._places[index.numpy()]]))
