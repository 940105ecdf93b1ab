# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What stays of rows for readers: receipts in `results/receipts`, in folders named after the `receipt_sha256` of their
rows, and a picture with images of each method."""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from board import BESIDE, PREFIX
from PIL import Image

from diffusers_dp.verify import Unreadable, check_guarantee, read_receipt


RECEIPTS, SHOWN = "receipts", "images"  # folders beside the rows
EARLIER = "receipt of an earlier format"  # a row with these words in `receipt` has its digest alone
RECEIPT = "privacy_receipt.json"
TOLERANCE = 1e-3  # of an epsilon that is recomputed
IMAGES = 10  # of each method in the picture


def digest_of(receipt: Path) -> str:
    return hashlib.sha256(receipt.read_bytes()).hexdigest()


def keep_receipt(release: Path, results: Path) -> None:
    folder = folder_of(digest_of(release / RECEIPT), results)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(release / RECEIPT, folder / RECEIPT)


def folder_of(digest: str, results: Path) -> Path:
    return results / RECEIPTS / digest[:12]


def check_kept(rows: Sequence[dict[str, Any]], results: Path) -> Iterator[str]:
    """
    Recomputes epsilon of every kept receipt.

    Returns:
        `Iterator[str]`: A sentence for each that does not fit its rows, or itself, and for each row of the leaderboard
            that has none, unless the row says that its receipt was one of an earlier format.
    """
    known: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "receipt_sha256" in row and row.get("receipt") != EARLIER:
            known.setdefault(row["receipt_sha256"], []).append(row)
    for digest, same in known.items():
        if any(row["case"].startswith((PREFIX, *BESIDE)) for row in same) and not folder_of(digest, results).is_dir():
            yield f"{same[0]['case']}: its receipt is not kept."
    for folder in folders(results / RECEIPTS):
        yield from (f"{folder.name}: {problem}" for problem in _wrong_receipt(folder, known))


def folders(place: Path) -> list[Path]:
    return sorted(each for each in place.glob("*") if each.is_dir())


def _wrong_receipt(folder: Path, known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    try:
        receipt = read_receipt(folder)
    except Unreadable as error:
        yield str(error)
        return
    same = known.get(digest_of(folder / RECEIPT), [])
    if not same:
        yield "It is the receipt of no row."
    yield from check_guarantee(receipt)
    for row in same:
        claim = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
        said = [row["epsilon_spent"], row["delta"], row.get("status", receipt["status"])]
        if [claim, receipt["delta"], receipt["status"]] != said:
            yield f"It does not say what the row of {row['case']} says."
        if claim > row["epsilon"] + TOLERANCE:
            yield f"It costs more than the {row['epsilon']:g} of the row of {row['case']}."


def keep_some_images(release: Path, images: Path, data: str, real: Path | str, results: Path) -> None:
    """Writes what the pictures show of a release and of real images, unless it is there: one image for each of the
    first classes, at most ten, side by side in a PNG.

    Args:
        images (`Path`): The release, or images that were drawn from it.
        data (`str`): Name of the data set.
        real (`Path` or `str`): Its place.
    """
    from scorer import read

    files = images_of(digest_of(release / RECEIPT), results), results / SHOWN / f"{data}.png"
    for file, place, split in zip(files, (images, real), ("train", "test"), strict=True):
        if not file.exists():
            found = read(place, split)
            classes = np.arange(len(found)) if found.labels is None else np.asarray(found.labels)
            chosen = [int(np.argmax(classes == each)) for each in np.unique(classes)[:IMAGES]]
            pixels = np.concatenate(list(found.images[chosen].transpose(0, 2, 3, 1)), 1)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.squeeze()).save(file, optimize=True)


def images_of(digest: str, results: Path) -> Path:
    """The PNG of images of the release with a receipt of this digest."""
    return results / SHOWN / f"{digest[:12]}.png"


def draw_methods(columns: dict[str, dict[str, Path]], path: Path, shows: str = "") -> None:
    """
    Draws images of each method.

    Args:
        columns (`dict[str, dict[str, Path]]`): By title, what `keep_some_images` wrote, by method.
        path (`Path`): The PNG.
        shows (`str`): A hash of the rows, which the PNG keeps: a test says when it is stale.
    """
    from matplotlib.figure import Figure

    most = max(map(len, columns.values()))
    figure = Figure(figsize=(6.2 * len(columns), 0.5 * most + 0.5), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns.items(), strict=True):
        read = [np.asarray(Image.open(line, formats=["PNG"]).convert("RGB")) for line in lines.values()]
        height = read[0].shape[0]
        side = height + 2
        sheet = np.full((side * len(lines), side * IMAGES, 3), 255, np.uint8)
        for line, images in enumerate(read):
            for place, image in enumerate(np.split(images, images.shape[1] // height, 1)):
                sheet[line * side : line * side + height, place * side : place * side + height] = image
        axes.imshow(sheet, interpolation="nearest")
        axes.set_anchor("N")  # columns of fewer methods begin at the top, too
        axes.set_yticks([side * (line + 0.5) for line in range(len(lines))], list(lines), fontsize=8)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None, "Description": shows})
