# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Files for a visitor to save, made in memory, so that the page writes nothing and serves no folder."""

import io
import re
import zipfile
from dataclasses import asdict

from ..errors import UsageError
from ..release.allow_list import CARD_AND_RECEIPT
from ..release.dataset_card import dataset_card
from ..release.image_tables import write_images
from ..words import CARD_NAME, RECEIPT_NAME
from .drawing import Drawn, names_of


SHARD_NAME = "data/train-00000-of-00001.parquet"


def file_name(drawn: Drawn, number: int) -> str:
    """Names the file of one image by seed, number and class, in characters that every system accepts."""
    name = _plain(names_of(drawn)[number])
    return f"{drawn.order.seed}-{number:04d}{f'-{name}' if name else ''}.png"


def archive_name(drawn: Drawn, kind: str) -> str:
    """Names the archive of all images by model, seed and `kind` of archive."""
    path = re.sub(r"/release/?$", "", drawn.released.name)
    return f"{_plain('-'.join(path.split('/')[-2:])) or 'model'}-seed{drawn.order.seed}-{kind}.zip"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._-")[:40]


def images_zip(drawn: Drawn) -> bytes:
    """Packs the PNG files with the model's receipt."""
    files = {file_name(drawn, i): image for i, image in enumerate(drawn.images)}
    return _zip({**files, **_receipt(drawn)})


def dataset_zip(drawn: Drawn) -> bytes:
    """Packs a dataset folder for `load_dataset`, with card and receipt; for a release of images, the whole release.

    Raises:
        UsageError: The model has no receipt, so no card can state its guarantee.
    """
    released = drawn.released
    if released.problems:
        raise UsageError(
            f"'{released.name}' is not verified, so no dataset card can state its guarantee: save the images instead."
        )
    if released.holds_images:
        whole = (*CARD_AND_RECEIPT, *released.files)
        return _zip({name: (released.folder / name).read_bytes() for name in whole})
    names = released.class_names
    shard = io.BytesIO()
    write_images(shard, drawn.images, drawn.labels, names)
    order = {**asdict(drawn.order), "classes": list(drawn.order.classes) or "all"}
    card = dataset_card(
        released.receipt,
        num_images=len(drawn.images),
        class_names=names,
        parameters={name: order[name] for name in ("classes", "seed", "steps", "solver")},
    )
    return _zip({SHARD_NAME: shard.getvalue(), CARD_NAME: card.encode(), **_receipt(drawn)})


def _receipt(drawn: Drawn) -> dict[str, bytes]:
    if not drawn.released.receipt:
        return {}
    return {RECEIPT_NAME: (drawn.released.folder / RECEIPT_NAME).read_bytes()}


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # PNG and parquet are compressed already
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()
