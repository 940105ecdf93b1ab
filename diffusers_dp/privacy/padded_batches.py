# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Batches of a public shape, for `--noise exact`: kernels compute the last few rows of a batch in another order.

A record that is missing moves the records after it by a place. So the bits of a row may depend neither on its place
nor on the number of rows, as far as that can be a multiple of `ROWS`. `separate_records` tries it.
"""

from collections.abc import Iterator

import torch

from ..gradients.grid import ROWS
from ..gradients.step import PhysicalBatch


def padded_size(size: int) -> int:
    """Returns the largest batch up to `size`: a multiple of `ROWS`, below that of a quarter of it, below that any."""
    return next((size // rows * rows for rows in (ROWS, ROWS // 4) if size >= rows), size)


def pad_batches(batches: Iterator[PhysicalBatch], size: int) -> Iterator[PhysicalBatch]:
    """Fills each batch up with blanks that do not count, to `size` images if that is at most `ROWS`, and else to a
    multiple of `ROWS`, of which it makes batches of `ROWS`. So batches have two shapes. Images that are filled in
    never enter a sum.

    Args:
        batches (iterator of `PhysicalBatch`): Batches of at most `size` images. A last part that is not
            `None` has a number for each image, which is 1 for a blank.
        size (`int`): See `padded_size`.
    """
    rows = min(ROWS, size)

    def filled(values: torch.Tensor, value: int = 0) -> torch.Tensor:
        more = -len(values) % rows
        return torch.cat([values, values.new_full((more, *values.shape[1:]), value)]) if more else values

    for batch in batches:
        if len(batch[0]) == size:
            yield batch
            continue
        images, labels, counted, last = batch
        images, counted = filled(images), filled(counted)
        labels = None if labels is None else filled(labels)
        last = None if last is None else filled(last, 1)
        for place in range(0, len(images), rows):
            of = slice(place, place + rows)
            yield images[of], None if labels is None else labels[of], counted[of], None if last is None else last[of]
