"""What happens to a physical batch that does not fit into memory: it is computed in halves. The logical batch stays as
it was drawn."""

import itertools
from collections.abc import Callable, Iterable

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from .parts import widened
from .step import Gradients, PhysicalBatch


BatchSum = Callable[[list[PhysicalBatch]], Gradients]


class FittingParts:
    """Adds up physical batches, in halves where memory runs out, and keeps to the size that fitted. It says nothing,
    for whether memory ran out may tell the size of a Poisson sample.

    Sample, noise and the ledger's step belong to the whole step and are none of its business: the same images take
    part, each once. What the loss draws, times and noise of the rows, is drawn anew for the halves. That does not bend
    the answer: memory runs out by shapes and never by the values drawn, so that the new draws have the distribution of
    the old ones, and nothing that was computed from the old ones is kept. To repeat the same draws, the state of the
    private generator would have to be stored and set back, which nobody ever does here.

    Attributes:
        at_most (`int`, *optional*): Images, or units, that fitted where more did not.
    """

    def __init__(self) -> None:
        self.at_most: int | None = None

    def total(self, summed: BatchSum, batches: Iterable[PhysicalBatch]) -> Gradients:
        """The sum over all batches, in float64: they may be many.

        Args:
            summed (`Callable`): The sum over some of them; of none, zeros.

        Raises:
            RuntimeError: Not even a single image, or unit, fits; or anything else that `summed` raised.
        """
        total = {name: widened(value) for name, value in summed([]).items()}
        # Each part has a sum of its own, a copy of the gradient more: a part that failed half-way through adding would
        # be counted twice.
        for batch in batches:
            parts = _cut(batch, self.at_most)
            while parts:
                part_sum = _sum_that_fits(summed, parts[0])
                if part_sum is None:
                    self.at_most = max(1, _count(parts[0]) // 2)
                    parts = [smaller for part in parts for smaller in _cut(part, self.at_most)]
                    continue
                for name, value in part_sum.items():
                    total[name] += value.to(total[name].device)
                parts.pop(0)
        return total


def _sum_that_fits(summed: BatchSum, batch: PhysicalBatch) -> Gradients | None:
    """`None` where memory ran out."""
    try:
        return summed([batch])
    except RuntimeError as error:
        if _count(batch) == 1 or not should_reduce_batch_size(error):
            raise
    clear_device_cache(garbage_collection=True)  # only now: the error held on to all that had been computed
    return None


def _count(batch: PhysicalBatch) -> int:
    """Images, or units: none is ever parted."""
    images, _, _, unit_index = batch
    return len(images) if unit_index is None else int(unit_index.max()) + 1


def _cut(batch: PhysicalBatch, size: int | None) -> list[PhysicalBatch]:
    """Consecutive parts of at most `size` images or units; units are numbered from 0 in each."""
    images, labels, counted, unit_index = batch
    if size is None or _count(batch) <= size:
        return [batch]
    if unit_index is None:
        lengths = [len(part) for part in images.split(size)]
    else:
        lengths = [int(part.sum()) for part in unit_index.bincount().split(size)]
    parts = []
    for number, (length, end) in enumerate(zip(lengths, itertools.accumulate(lengths), strict=True)):
        chosen = slice(end - length, end)
        parts.append(
            (
                images[chosen],
                None if labels is None else labels[chosen],
                counted[chosen],
                None if unit_index is None else unit_index[chosen] - number * size,
            )
        )
    return parts
