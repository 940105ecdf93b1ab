# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What stays of rows for readers: receipts in `results/receipts`, named after the `receipt_sha256` of their row, small
releases of the leaderboard in `results/releases`, and a picture with images of each method."""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffusers_dp.verify import Unreadable, check_guarantee, verify


RECEIPTS, RELEASES = "receipts", "releases"  # folders beside the rows
RECEIPT = "privacy_receipt.json"
MOST_BYTES = 3_000_000  # of a release in the repository
SAME = 1e-9  # difference of two prints of one number
IMAGES = 10  # of each method in the picture


def digest_of(receipt: Path) -> str:
    return hashlib.sha256(receipt.read_bytes()).hexdigest()


def keep_receipt(release: Path, results: Path) -> None:
    receipt = release / RECEIPT
    (results / RECEIPTS).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(receipt, results / RECEIPTS / f"{digest_of(receipt)[:12]}.json")


def keep_release(release: Path, name: str, results: Path) -> None:
    """Copies a release that is small; it takes the place of an earlier one of this name."""
    if sum(file.stat().st_size for file in release.rglob("*")) <= MOST_BYTES:
        shutil.rmtree(results / RELEASES / name, ignore_errors=True)
        shutil.copytree(release, results / RELEASES / name)


def check_kept(rows: Sequence[dict[str, Any]], results: Path) -> Iterator[str]:
    """
    Recomputes epsilon of every kept receipt, and verifies every kept release.

    Returns:
        `Iterator[str]`: A sentence for each that does not fit to its row, or to itself.
    """
    known = {row["receipt_sha256"]: row for row in rows if "receipt_sha256" in row}
    for file in sorted((results / RECEIPTS).glob("*.json")):
        receipt, row = json.loads(file.read_text(encoding="utf-8")), known.get(digest_of(file))
        if row is None:
            yield f"{file.name} is the receipt of no row."
            continue
        claim = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
        if abs(claim - row["epsilon_spent"]) > SAME or receipt["delta"] != row["delta"]:
            yield f"{file.name} does not say what the row of {row['case']} says."
        yield from (f"{file.name}, {row['case']}: {problem}" for problem in check_guarantee(receipt))
    for folder in sorted((results / RELEASES).glob("*/")):
        if not (folder / RECEIPT).exists() or digest_of(folder / RECEIPT) not in known:
            yield f"{folder.name} is the release of no row."
            continue
        try:
            problems = verify(folder)[1]
        except Unreadable as error:
            problems = [str(error)]
        yield from (f"{folder.name}: {problem}" for problem in problems)


def some_images(release: Path) -> np.ndarray:
    """One image for each of the first classes, of shape (n, height, width, 3) in [0, 255], as long as there are any;
    drawn if the release is a model."""
    from scorer import read

    with tempfile.TemporaryDirectory() as drawn:
        if not (release / "data").is_dir():
            command = [sys.executable, "-m", "diffusers_dp.cli", "sample", str(release), "--num_images", str(IMAGES)]
            subprocess.run([*command, "--output_dir", f"{drawn}/images"], check=True, capture_output=True)
            release = Path(drawn, "images")
        found = read(release, "train")
    return first_of_classes(found.images, found.labels)


def first_of_classes(images: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """See `some_images`; `images` has the shape (n, channels, height, width)."""
    classes = np.arange(len(images)) if labels is None else np.asarray(labels)
    places = [int(np.argmax(classes == each)) for each in np.unique(classes)[:IMAGES]]
    chosen = images[places].transpose(0, 2, 3, 1)
    return np.broadcast_to(chosen, (*chosen.shape[:3], 3))


def draw_methods(columns: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """
    Draws images of each method.

    Args:
        columns (`dict[str, dict[str, np.ndarray]]`): By title, what `some_images` returns by method.
        path (`Path`): The PNG.
    """
    from matplotlib.figure import Figure

    most = max(len(lines) for lines in columns.values())
    figure = Figure(figsize=(6.2 * len(columns), 0.5 * most + 0.5), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns.items(), strict=True):
        side = next(iter(lines.values())).shape[1] + 2
        sheet = np.full((side * len(lines), side * IMAGES, 3), 255, np.uint8)
        for line, images in enumerate(lines.values()):
            for place, image in enumerate(images):
                sheet[line * side : line * side + side - 2, place * side : place * side + side - 2] = image
        axes.imshow(sheet, interpolation="nearest")
        axes.set_yticks([side * (line + 0.5) for line in range(len(lines))], list(lines), fontsize=8)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})
