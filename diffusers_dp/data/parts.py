# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images are decoded part by part, each part into its place in a file. Other processes import this, so nothing here
loads torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from ..randomness.keyed_hash import DIGEST, digests_of
from .decoding import MAX_IMAGE_PIXELS, ValueRange, decode_image
from .records import Records


# Decoded at a time, and in memory, in each process.
PART_BYTES, PART_IMAGES = 2**24, 4096


#: The place of its first image among the decoded ones, and the positions of its records, int64 `[k]`.
Part = tuple[int, np.ndarray]


def parts_of(left_out: np.ndarray, image_shape: tuple[int, int, int]) -> list[Part]:
    """Parts of as many records as may be in memory, in order.

    Args:
        left_out (`np.ndarray` of bool, shape `[n]`): Which of n records are not decoded.
        image_shape (`tuple[int, int, int]`): (C, H, W).
    """
    kept, length = np.flatnonzero(~left_out), part_length(image_shape)
    return [(row, kept[row : row + length]) for row in range(0, len(kept), length)]


def part_length(image_shape: tuple[int, int, int]) -> int:
    """Records in a part."""
    return max(1, min(PART_IMAGES, PART_BYTES // int(np.prod(image_shape))))


@dataclass
class Decoder:
    """Decodes parts of the records into their places in one `.npy` file; it may do so in another process.

    Args:
        records (`Records`): Where images come from.
        path (`Path`): The file, which is made here.
        num_images (`int`): How many images it will hold.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        labelled (`bool`): Whether an image without a label counts as unreadable. One without an id always does.
        max_pixels (`int`): An image of more counts as unreadable, too.
        value_range (`tuple[float, float]`, *optional*): As in `decode_image`.
    """

    records: Records
    path: Path
    num_images: int
    image_shape: tuple[int, int, int]
    labelled: bool
    max_pixels: int = MAX_IMAGE_PIXELS
    value_range: ValueRange | None = None

    def __post_init__(self) -> None:
        shape = (self.num_images, *self.image_shape)
        self.offset = open_memmap(self.path, mode="w+", dtype=np.uint8, shape=shape).offset

    def __call__(self, part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Decodes one part. Where an image is not readable, zeros are written.

        Returns:
            `tuple[np.ndarray, np.ndarray, np.ndarray]`: Label of each image (int64, 0 where not readable), whether it
            is readable (bool), and the digest of its id (zeros where it has none).
        """
        row, places = part
        images = np.zeros((len(places), *self.image_shape), dtype=np.uint8)
        labels, readable = np.zeros(len(places), dtype=np.int64), np.zeros(len(places), dtype=bool)
        digests = np.zeros(len(places), dtype=DIGEST)
        for number, (encoded, label, identifier) in enumerate(self.records.read(places.tolist())):
            image = decode_image(encoded, self.image_shape, self.max_pixels, self.value_range)
            digests[number] = digests_of([identifier])[0]
            if image is not None and identifier is not None and (not self.labelled or label is not None):
                images[number], labels[number], readable[number] = image, label or 0, True
        # Written, not mapped: a full disk is then an error and not a signal.
        with open(self.path, "r+b") as file:
            file.seek(self.offset + row * int(np.prod(self.image_shape)))
            file.write(images.data)
        return labels, readable, digests
