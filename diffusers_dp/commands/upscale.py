# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp upscale`: larger copies of released images. The guarantee stays, because nothing private is read."""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..release.allow_list import dataset_index
from ..release.components import LARGEST_SIDE
from ..release.hub import fetch_release
from ..release.image_tables import PARAMETERS_NAME, open_images, to_png, write_images
from ..release.loading import open_release
from ..sampling.drawing import pixels_of
from ..sampling.shards import IMAGES_PER_SHARD, refuse_other_images
from ..verify import Damaged, Unreadable, read_receipt, receipt_digest
from ..words import CARD_NAME, RECEIPT_NAME


if TYPE_CHECKING:
    import datasets
    from PIL import Image

#: What the card of the large images says after that of the small ones.
SECTION = """
## Enlarged

The images above had {small} pixels a side. `diffusers-dp upscale` enlarged them to {side} {how}. Nothing private was
read, so the guarantee stays. `privacy_receipt.json` is the receipt of the small images, or of their model. It lists
their files, and none of these.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", help="Release of images, or folder of `diffusers-dp sample`; or Hub id.")
    parser.add_argument("--output_dir", type=Path, required=True, help="New folder.")
    parser.add_argument("--resolution", type=int, help="Side of the large images, in pixels, without a network.")
    parser.add_argument(
        "--upscaler",
        help="Folder of a network that learned public images (benchmarks/upscaler.py), which says the side; unset: "
        "bilinear.",
    )


def run(args: argparse.Namespace) -> None:
    from tqdm.auto import tqdm

    output = args.output_dir
    if (args.upscaler is None) == (args.resolution is None):
        raise UsageError("Give either --resolution, for bilinear images, or --upscaler, whose network says the side.")
    if os.path.isfile(output / PARAMETERS_NAME):
        raise UsageError(f"--output_dir {output} holds images already; give another folder.")
    refuse_other_images(output)
    folder, small = _opened(args.images)
    shape = pixels_of(small[:1]["image"]).shape[1:]
    enlarge, facts, how = _way(args, shape)
    classes = small.features["label"].names if "label" in small.features else None
    starts = range(0, len(small), IMAGES_PER_SHARD)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".upscale-") as temporary:
            begun = Path(temporary, "begun")
            (begun / "data").mkdir(parents=True)
            for number, start in enumerate(tqdm(starts, desc="Enlarging", unit="shard")):
                part = small[start : start + IMAGES_PER_SHARD]
                name = f"data/train-{number:05d}-of-{len(starts):05d}.parquet"
                write_images(begun / name, enlarge(part["image"]), part.get("label"), classes)
            (begun / RECEIPT_NAME).write_bytes((folder / RECEIPT_NAME).read_bytes())
            asked = {**facts, "num_images": len(small), "receipt_sha256": receipt_digest(folder / RECEIPT_NAME)}
            (begun / PARAMETERS_NAME).write_text(canonical_json(asked))
            card = _card(folder) + SECTION.format(small=shape[-1], side=facts["resolution"], how=how)
            (begun / CARD_NAME).write_text(card, encoding="utf-8")
            os.replace(begun, output)
    except OSError as error:
        raise UsageError(f"--output_dir {output} cannot be written ({error.strerror}); give another folder.") from None
    print(f"{len(small)} images of {facts['resolution']} pixels in {output}: datasets.load_dataset({str(output)!r}) "
          "reads them.")  # fmt: skip


def _opened(name: str) -> "tuple[Path, datasets.Dataset]":
    """Folder and images of a verified release, or of what `diffusers-dp sample` drew from one.

    Raises:
        UsageError: It has no images.
        IntegrityError: The release is not as its receipt says, or a folder of drawn images has no receipt.
    """
    folder = fetch_release(name)
    images = open_images(name, folder)
    if images is None:
        raise UsageError(
            f"{name} holds no images: draw some from a model with `diffusers-dp sample`, and give their folder."
        )
    if dataset_index(folder) is not None:
        open_release(name)
        return folder, images
    try:
        read_receipt(folder)
    except (Unreadable, Damaged) as error:
        raise IntegrityError(f"'{name}' was not enlarged: {error}") from None
    return folder, images


def _way(
    args: argparse.Namespace, shape: tuple[int, ...]
) -> "tuple[Callable[[list[Image.Image]], list[bytes]], dict[str, Any], str]":
    """What makes PNG files of large images of small ones, its facts, and how in words.

    Args:
        shape (`tuple[int, ...]`): (C, h, w) of a small image.

    Raises:
        UsageError: It does not fit such images.
    """
    import torch
    from PIL import Image

    from ..sampling.upscaler import Upscaler, upscale

    network = None if args.upscaler is None else Upscaler.load(args.upscaler)
    side, flag = (args.resolution, "resolution") if network is None else (network.side, "upscaler")
    if not max(shape[1:]) < side <= LARGEST_SIDE:
        raise UsageError(
            f"--{flag} makes images of {side} pixels a side, and those here have {max(shape[1:])}: give one that "
            f"makes larger ones, of {LARGEST_SIDE} at most."
        )
    if network is not None and network.unet.config.in_channels != shape[0]:
        raise UsageError(f"--upscaler takes images of {network.unet.config.in_channels} channels, and those here have "
                         f"{shape[0]}: give another one.")  # fmt: skip

    def enlarge(pictures: list[Image.Image]) -> list[bytes]:
        large = upscale(torch.from_numpy(pixels_of(pictures).copy()), side, network).permute(0, 2, 3, 1).numpy()
        return [to_png(Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image)) for image in large]

    if network is None:
        return enlarge, {"resolution": side, "upscaler": "bilinear"}, "bilinearly"
    words = f"by a network that learned public images (SHA-256 of its weights: {network.sha256})"
    return enlarge, {"resolution": side, "upscaler_sha256": network.sha256}, words


def _card(folder: Path) -> str:
    """That of the small images, without a picture of them. Raises `IntegrityError` where there is none."""
    try:
        text = (folder / CARD_NAME).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise IntegrityError(f"{folder / CARD_NAME} cannot be read.") from None
    return "".join(line for line in text.splitlines(keepends=True) if "samples.png" not in line)
