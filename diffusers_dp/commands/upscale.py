# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp upscale`: larger copies of released images. The guarantee stays, because nothing private is read."""

import argparse
import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.decoding import decode_image
from ..errors import IntegrityError, UsageError
from ..files.strange_files import is_own, read_bounded
from ..release.allow_list import dataset_index
from ..release.components import MOST_JSON, WRONG
from ..release.dataset_card import dataset_card
from ..release.hub import fetch_release
from ..release.image_tables import PARAMETERS_NAME, PNG_COLOURS, Shape, load_images, load_sampled, to_png
from ..release.loading import read_release
from ..sampling.shards import IMAGES_PER_SHARD, begin_folder, shards_of_parts, write_whole
from ..verify import Unreadable, check_guarantee, read_receipt, receipt_digest
from ..words import RECEIPT_NAME


if TYPE_CHECKING:
    import datasets
    import numpy as np

    from ..sampling.upscaler import Upscaler

LARGEST = 1024  # side of an enlarged image
PIXELS_OF_A_SHARD = 2**25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", help="Release of images, or folder of `diffusers-dp sample`; or Hub id.")
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="New folder, or one that the same command began."
    )
    parser.add_argument("--resolution", type=int, help="Side of the large images, in pixels, without a network.")
    parser.add_argument(
        "--upscaler",
        help="Folder of a network that learned public images (benchmarks/upscaler.py), which says the side; unset: "
        "bilinear.",
    )


def run(args: argparse.Namespace) -> None:
    from tqdm.auto import tqdm

    if (args.upscaler is None) == (args.resolution is None):
        raise UsageError("Give either --resolution, for bilinear images, or --upscaler, whose network says the side.")
    folder = fetch_release(args.images)
    small, receipt, drawn = opened(args.images, folder)
    rows = _undecoded(small)
    channels, height, width = _decoded(args.images, rows[0]["image"]["bytes"], None).shape
    shape = channels, height, width
    network, side = _network(args, shape)
    way = {"upscaler": "bilinear"} if network is None else {"upscaler_sha256": network.sha256}
    asked = {
        "resolution": side, **way, "num_images": len(small), "drawn": drawn,
        "receipt_sha256": receipt_digest(folder / RECEIPT_NAME),
    }  # fmt: skip
    classes = small.features["label"].names if "label" in small.features else None
    card = dataset_card(
        receipt, num_images=len(small), class_names=classes, parameters=drawn,
        enlarged={"small": shape[-1], "side": side, **way},
    )  # fmt: skip
    begin_folder(args.output_dir, folder, asked, card)
    size = max(1, min(IMAGES_PER_SHARD, PIXELS_OF_A_SHARD // side**2))
    parts = [range(start, min(start + size, len(small))) for start in range(0, len(small), size)]
    missing = [each for each in shards_of_parts(args.output_dir, parts) if not each[0].exists()]
    with tqdm(total=sum(len(part) for _, part in missing), desc="Enlarging", unit="image") as bar:
        for name, part in missing:
            found = rows[part.start : part.stop]
            images = [_decoded(args.images, image["bytes"], shape) for image in found["image"]]
            try:
                write_whole(name, _enlarged(images, side, network), found.get("label"), classes)
            except OSError as error:
                raise UsageError(
                    f"--output_dir {args.output_dir} cannot be written ({error.strerror}): make room, then resume "
                    "with the same command."
                ) from None
            bar.update(len(part))
    print(f"{len(small)} images of {side} pixels in {args.output_dir}: "
          f"datasets.load_dataset({str(args.output_dir)!r}) reads them.")  # fmt: skip


def opened(name: str, folder: Path) -> "tuple[datasets.Dataset, dict[str, Any], dict[str, Any]]":
    """Images, the checked receipt, and how the images were drawn.

    Args:
        name (`str`): A release of images, or what `diffusers-dp sample` drew from a model.
        folder (`Path`): Where it is.

    Raises:
        UsageError: There are no images, or not all of them.
        IntegrityError: The release, or the receipt of a folder of drawn images, does not hold.
    """
    if dataset_index(folder) is not None:
        release = read_release(folder, name)
        if release.problems:
            raise IntegrityError(f"'{name}' was not enlarged: {' '.join(release.problems)}")
        return load_images(name, folder), release.receipt, {}
    if not os.path.lexists(folder / PARAMETERS_NAME):
        raise UsageError(
            f"{name} holds no images: draw some from a model with `diffusers-dp sample`, and give their folder."
        )
    try:
        if not all(is_own(folder, folder / file) for file in (PARAMETERS_NAME, RECEIPT_NAME)):
            raise ValueError("a file lies elsewhere")
        drawn = json.loads(read_bounded(folder / PARAMETERS_NAME, MOST_JSON))
        receipt = read_receipt(folder)
        problems = check_guarantee(receipt)
        if drawn["receipt_sha256"] != receipt_digest(folder / RECEIPT_NAME):
            problems.append(f"{PARAMETERS_NAME} names another receipt.")
        number = int(drawn["num_images"])
        if number < 1:
            raise ValueError("it has no images")
    except Unreadable as error:
        raise IntegrityError(f"'{name}' was not enlarged: {error}") from None
    except WRONG:
        raise IntegrityError(f"'{name}' was not enlarged: `diffusers-dp sample` wrote no such folder.") from None
    if problems:
        raise IntegrityError(f"'{name}' was not enlarged: {' '.join(problems)}")
    images = load_sampled(name, folder)
    if len(images) != number:
        raise UsageError(
            f"{name} holds {len(images):,} of {number:,} images: finish it with the command that began it."
        )
    return images, receipt, {key: value for key, value in drawn.items() if key != "receipt_sha256"}


def _undecoded(images: "datasets.Dataset") -> "datasets.Dataset":
    """With PNG files in the place of pictures: these may be a stranger's."""
    import datasets

    return images.cast_column("image", datasets.Image(decode=False))


def _decoded(name: str, picture: bytes, shape: "Shape | None") -> "np.ndarray":
    """Pixels `[C, H, W]` of a PNG file whose header was checked. Raises `IntegrityError`."""
    if shape is None:  # that of the first picture, which all others have
        width, height, _, colour = struct.unpack(">IIBB", picture[16:26])
        shape = 1 if colour == PNG_COLOURS[1] else 3, height, width
    found = decode_image(picture, shape, max_pixels=shape[1] * shape[2])
    if found is None:
        raise IntegrityError(f"'{name}' was not enlarged: it holds a picture that is damaged.")
    return found


def _network(args: argparse.Namespace, shape: Shape) -> "tuple[Upscaler | None, int]":
    """The network, if any, and the side of enlarged images. Raises `UsageError` if images `[C, H, W]` do not fit."""
    from ..sampling.upscaler import Upscaler

    network = None if args.upscaler is None else Upscaler.load(args.upscaler)
    side, flag = (args.resolution, "resolution") if network is None else (network.side, "upscaler")
    if shape[1] != shape[2]:
        raise UsageError(
            f"{args.images} holds images of {shape[1]} x {shape[2]} pixels, and square ones are enlarged."
        )
    if not shape[1] < side <= LARGEST:
        raise UsageError(
            f"--{flag} makes images of {side} pixels a side, and those here have {shape[1]}: give one that makes "
            f"larger ones, of {LARGEST} at most."
        )
    if network is not None and network.channels != shape[0]:
        raise UsageError(f"--upscaler takes images of {network.channels} channels, and those here have {shape[0]}: "
                         "give another one.")  # fmt: skip
    return network, side


def _enlarged(images: "list[np.ndarray]", side: int, network: "Upscaler | None") -> list[bytes]:
    """PNG files. Raises `UsageError` where memory runs out."""
    import numpy as np
    import torch
    from PIL import Image

    from ..distributed.memory import is_out_of_memory
    from ..sampling.upscaler import upscale

    try:
        large = upscale(torch.from_numpy(np.stack(images)), side, network).permute(0, 2, 3, 1).numpy()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(f"Images of {side} pixels take more memory than there is: give a smaller side.") from None
    return [to_png(Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)) for image in large]
