# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Files for a visitor to save, made in memory, so that the page writes nothing and serves no folder."""

import io
import re
import zipfile

from ..errors import UsageError
from ..methods.judge import JUDGE
from ..release.allow_list import CARD_AND_RECEIPT
from ..release.cards import dataset_card
from ..release.image_tables import PROBABILITIES, write_images
from ..verify import CARD_NAME, RECEIPT_NAME
from .drawing import Drawn


SHARD_NAME = "data/train-00000-of-00001.parquet"


def file_names(drawn: Drawn) -> list[str]:
    """Names a file for each image by seed, number and class, in characters that every system accepts."""
    classes = [f"-{name}" if (name := _plain(each)) else "" for each in drawn.names]
    return [f"{drawn.drawing.seed}-{number:04d}{name}.png" for number, name in enumerate(classes)]


def archive_name(drawn: Drawn, kind: str) -> str:
    """Names the archive of all images by model, seed and `kind` of archive."""
    path = re.sub(r"/release/?$", "", drawn.released.name)
    return f"{_plain('-'.join(path.split('/')[-2:])) or 'model'}-seed{drawn.drawing.seed}-{kind}.zip"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._-")[:40]


def images_zip(drawn: Drawn) -> bytes:
    """Packs the PNG files with the model's receipt."""
    receipt = (RECEIPT_NAME,) if drawn.released.receipt else ()
    return _zip(drawn, receipt, dict(zip(file_names(drawn), drawn.images, strict=True)))


def dataset_zip(drawn: Drawn) -> bytes:
    """Packs a dataset folder for `load_dataset`, with card and receipt; for a release of images, the whole release.

    Raises:
        UsageError: The model has no receipt, so no card can state its guarantee.
    """
    released, drawing = drawn.released, drawn.drawing
    if released.problems:
        raise UsageError(
            f"'{released.name}' is not verified, so no dataset card can state its guarantee: save the images instead."
        )
    if released.holds_images:
        return _zip(drawn, (*CARD_AND_RECEIPT, *released.files), {})
    shard = io.BytesIO()
    write_images(shard, drawn.images, drawing.class_labels, released.class_names, drawn.soft_labels)
    number, names = len(drawn.images), released.class_names
    parameters = {key: value for key, value in drawing.facts.items() if key != "num_images"}
    in_turn = None if names is None else tuple(i % len(names) for i in range(number))
    if drawn.soft_labels is not None:
        parameters[PROBABILITIES] = JUDGE
    if drawing.class_labels != in_turn:  # classes were chosen
        parameters["classes"] = ", ".join(dict.fromkeys(drawn.names))
    card = dataset_card(released.receipt, num_images=number, class_names=names, parameters=parameters)
    return _zip(drawn, (RECEIPT_NAME,), {SHARD_NAME: shard.getvalue(), CARD_NAME: card.encode()})


def _zip(drawn: Drawn, released: tuple[str, ...], files: dict[str, bytes]) -> bytes:
    """Packs files of the release, by their names, and others."""
    files |= {name: (drawn.released.folder / name).read_bytes() for name in released}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # PNG and parquet are compressed already
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()
