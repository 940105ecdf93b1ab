# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PrivateRecords and their batches, in the clear, for the door and the teachers behind it alone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..data.picked_images import PickedImages, stored_images, tensor_of
from ..distributed.processes import Processes
from ..errors import UsageError
from ..gradients.step import PhysicalBatch
from ..randomness.keyed_hash import digests_of, group_of, has_id
from ..randomness.private_generator import PrivateGenerator


if TYPE_CHECKING:
    from ..data.images import ImageArrays

UNITS_AT_ONCE = 64  # of several images: where few have many, few blanks are looked at


class PrivateRecords:
    """The images of one process, their labels and units. See `SensitiveImages` for the arguments.

    Attributes:
        num_units, places (`int`): Declared, of all processes: N, and the most units that there can be.
        own_units (`int`): Declared, of this process: as many units are sampled from.
        units (`torch.Tensor` of int64, shape `[n]`, *optional*): Unit of each image; `None` where each image is one.
    """

    def __init__(
        self, images: np.ndarray | PickedImages, labels: np.ndarray | None, readable: np.ndarray | None, *,
        num_images: int, image_shape: Sequence[int], class_names: Sequence[str] | None, units: np.ndarray | None,
        num_units: int | None, ids: np.ndarray | None, capacity: int | None, max_images_per_unit: int,
        device: torch.device, processes: Processes,
    ):  # fmt: skip
        capacity = num_images if capacity is None else capacity
        if len(images) > capacity:
            raise UsageError("There are more images than --num_train_images declares; raise --num_train_images.")
        if tuple(images.shape[1:]) != tuple(image_shape):
            raise UsageError(
                f"Images of shape {tuple(image_shape)} were declared, see --resolution and --num_channels."
            )
        if class_names is not None and labels is None:
            raise ValueError("`class_names` are declared, but there are no `labels`.")
        self.processes, self.device = processes, device
        self.num_images = self.num_units = num_images
        self.capacity = self.places = capacity
        self.units: torch.Tensor | None = None
        if units is not None:
            held_out = capacity - num_images
            if num_units is None or len(units) and units.max() >= processes.share_size(num_units + held_out):
                raise UsageError("There are more units than --num_train_units declares; raise --num_train_units.")
            self.num_units, self.places = num_units, num_units + held_out
            self.units = tensor_of(units)
        elif len(images) > processes.share_size(capacity):
            raise ValueError("There are more images than the share of one process.")
        self.own_units = processes.share_size(self.places)
        self.ids = ids
        self.max_images_per_unit = max_images_per_unit
        self.image_shape = tuple(image_shape)
        self.class_names = None if class_names is None else list(class_names)
        self.images = images if isinstance(images, PickedImages) else stored_images(images)
        self.labels = None if class_names is None or labels is None else tensor_of(labels)
        self.readable = torch.ones(len(images), dtype=torch.bool) if readable is None else torch.tensor(readable)
        self.readable &= self._in_a_class(self.labels)

    def _in_a_class(self, labels: torch.Tensor | None) -> torch.Tensor | bool:
        """A label outside the declared set is a damaged record like any other."""
        return True if labels is None else (labels >= 0) & (labels < len(self.class_names or ()))

    def of_all_processes(
        self, records: "ImageArrays | None"
    ) -> tuple[torch.Tensor | PickedImages, torch.Tensor | None, np.ndarray, np.ndarray]:
        """Images, labels, which of them count, and digests of ids, of all shares: for teachers alone.

        Args:
            records (`ImageArrays`, *optional*): All images of the data set, needed with several processes.

        Raises:
            ValueError: Units have no ids, or several processes no `records`.
        """
        if records is None:
            if self.processes.count > 1 or self.units is not None and self.ids is None:
                raise ValueError("Shares need the ids of units, and with several processes all records.")
            ids = digests_of(range(len(self.images))) if self.ids is None else self.ids
            return self.images, self.labels, self.readable.numpy(), ids
        if tuple(records.images.shape[1:]) != self.image_shape:
            raise ValueError("Teachers in several processes see the images of the data set, and no mapped ones.")
        labels = None if self.class_names is None or records.labels is None else tensor_of(records.labels)
        readable = (torch.tensor(records.readable) & self._in_a_class(labels)).numpy()
        ids = digests_of(range(len(records.images))) if records.ids is None else records.ids
        images = records.images if isinstance(records.images, PickedImages) else stored_images(records.images)
        return images, labels, readable, ids

    def groups(self, number: int, key: str) -> list[torch.Tensor]:
        """Units of this process in each group, ascending. A unit that is not there is in no group: how large one is,
        is private, and nothing follows from it.

        Raises:
            ValueError: Units have no ids.
        """
        if self.units is not None and self.ids is None:
            raise ValueError("Groups of units follow from a public key and the ids of the units.")
        ids = self.ids
        if ids is None:  # see `data.shares.share_of`
            ids = digests_of(row * self.processes.count + self.processes.index for row in range(len(self.images)))
        units = np.arange(len(ids)) if self.units is None else self.units.numpy()
        named = has_id(ids)  # a record without an id has the number of some unit, and is none of its images
        units, first = np.unique(units[named], return_index=True)
        groups = group_of(ids[named][first], number, key)
        return [torch.from_numpy(units[groups == each]) for each in range(number)]

    def batches_for_gradients(
        self, sample: torch.Tensor, size: int, generator: PrivateGenerator
    ) -> Iterator[PhysicalBatch]:
        """The drawn records, `size` at a time."""
        if self.units is None:
            return self._batches_of_images(sample, size, self.device)
        return self._batches_of_units(self.units, sample, size, generator)

    def batches_for_query(
        self, sample: torch.Tensor, size: int, generator: PrivateGenerator, device: torch.device
    ) -> Iterator[PhysicalBatch]:
        """The drawn images for a query. Of units, one image of each comes first, then a second one of each, and so
        on, with blanks in the places of units that have no more. So the shape of a batch, and a unit's place in it, do
        not depend on the images of other units. The last part of a batch is the number of images of each one's
        unit."""
        if self.units is None:
            yield from self._batches_of_images(sample, size, device)
            return
        taken, counts = self._taken(self.units, sample, generator)
        first = counts.cumsum(0) - counts
        for turn in range(int(counts.max())):
            for units in sample.split(min(size, UNITS_AT_ONCE)):
                there = counts[units] > turn
                if there.any():  # blanks add nothing
                    records = torch.full((len(units),), len(self.images))  # no record has this index
                    records[there] = taken[first[units[there]] + turn]
                    for images, labels, counted, _ in self._batches_of_images(records, size, device):
                        yield images, labels, counted, counts[units].clamp_min(1)

    def _batches_of_units(
        self, unit_of: torch.Tensor, sample: torch.Tensor, size: int, generator: PrivateGenerator
    ) -> Iterator[PhysicalBatch]:
        """Whole units, for gradients, which are averaged before they are clipped."""
        taken, counts = self._taken(unit_of, sample, generator)
        units = [unit for unit in taken.split(counts.tolist()) if len(unit)]
        while units:
            number = next((n for n in range(1, len(units)) if sum(map(len, units[: n + 1])) > size), len(units))
            chunk, units = units[:number], units[number:]
            index = torch.cat(chunk)
            unit_index = torch.arange(number).repeat_interleave(torch.tensor([len(unit) for unit in chunk]))
            labels = None if self.labels is None else self.labels[index].to(self.device)
            counted = torch.ones(len(index), dtype=torch.bool, device=self.device)
            yield self.images[index].to(self.device), labels, counted, unit_index

    def _taken(
        self, unit_of: torch.Tensor, sample: torch.Tensor, generator: PrivateGenerator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each sampled unit at most `max_images_per_unit` of its readable images, unit by unit, and how many these
        are of every unit. The draw that chooses them takes as many numbers as there are records, whoever is sampled:
        one unit does not move what is chosen of another."""
        sampled = torch.zeros(self.own_units, dtype=torch.bool)
        sampled[sample] = True
        luck = torch.from_numpy(generator.uniform(len(unit_of)))
        taken = (sampled[unit_of] & self.readable).nonzero().squeeze(1)
        taken = taken[luck[taken].argsort()]
        taken = taken[unit_of[taken].argsort(stable=True)]  # unit by unit, each in random order
        counts = unit_of[taken].bincount(minlength=self.own_units)
        within = torch.arange(len(taken)) - (counts.cumsum(0) - counts)[unit_of[taken]]
        return taken[within < self.max_images_per_unit], counts.clamp_max(self.max_images_per_unit)

    def _batches_of_images(self, indices: torch.Tensor, size: int, device: torch.device) -> Iterator[PhysicalBatch]:
        """An image that is missing or unreadable is blank: it keeps its place, so that how many rows there are, and
        who draws which random numbers, depends on the Poisson sample alone."""
        for chunk in indices.split(size) if len(indices) else ():
            there = chunk < len(self.images)
            counted = there.clone()
            counted[there] = self.readable[chunk[there]]
            found = self.images[chunk[counted]]
            images = found.new_zeros(len(chunk), *self.image_shape)
            images[counted] = found
            labels = None
            if self.labels is not None:
                labels = torch.zeros(len(chunk), dtype=torch.long)
                labels[counted] = self.labels[chunk[counted]]
                labels = labels.to(device)
            yield images.to(device), labels, counted.to(device), None


def scaled(images: torch.Tensor, lowest: int) -> torch.Tensor:
    """Pixels from `lowest` to 1, float32; what an encoder made of them as it is."""
    if images.dtype != torch.uint8:
        return images.float()
    return images.float() / 255 if lowest == 0 else images.float() / 127.5 - 1
