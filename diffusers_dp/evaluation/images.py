# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images that are judged, or that others are judged against."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ImageSet:
    """8-bit images in memory, with their labels.

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): C is 1 or 3.
        labels (`np.ndarray` of int64, shape `[N]`, *optional*): Indices of `class_names`.
        class_names (`tuple[str, ...]`, *optional*): Of all classes, also of those without an image.
        origin (`dict`): Where they come from, for the report: JSON values, no path of this machine.
    """

    images: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    origin: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, index: np.ndarray) -> "ImageSet":
        """The images at `index`, in that order."""
        labels = None if self.labels is None else self.labels[index]
        return ImageSet(self.images[index], labels, self.class_names, self.origin)
