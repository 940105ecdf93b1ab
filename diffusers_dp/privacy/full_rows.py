# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Batches of a public shape, for `--noise exact`: kernels compute the last few rows of a batch in another order.

A record that is missing moves the records after it by a place. So the bits of a row may depend neither on its place
nor on the number of rows, as far as that can be a multiple of `ROWS`. `separate_records` tries it.
"""

from collections.abc import Iterator

import torch

from ..gradients.grid import ROWS
from ..gradients.step import PhysicalBatch


def full_size(size: int) -> int:
    """Returns the largest batch up to `size`: a multiple of `ROWS`, below that of a quarter of it, below that any."""
    return next((size // rows * rows for rows in (ROWS, ROWS // 4) if size >= rows), size)


def in_full_rows(batches: Iterator[PhysicalBatch], size: int) -> Iterator[PhysicalBatch]:
    """Fills each batch up with blanks that do not count, to a multiple of `ROWS` images, or to `size` if that is less.
    Images that are filled in never enter a sum.

    Args:
        batches (iterator of `PhysicalBatch`): Batches of at most `size` images. A last part that is not
            `None` has a number for each image, which is 1 for a blank.
        size (`int`): See `full_size`.
    """

    def filled(values: torch.Tensor, value: int = 0) -> torch.Tensor:
        more = -len(values) % min(ROWS, size)
        return torch.cat([values, values.new_full((more, *values.shape[1:]), value)]) if more else values

    for images, labels, counted, last in batches:
        of_labels = None if labels is None else filled(labels)
        yield filled(images), of_labels, filled(counted), None if last is None else filled(last, 1)
