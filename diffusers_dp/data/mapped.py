# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images mapped one by one through a public function, as float16 on disk: what was done before an interruption stays,
and no more than a batch is in memory."""

import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from tqdm.auto import tqdm

from ..distributed.interruption import is_memory_error
from ..files.journal import replace_file
from .cache import damaged, finish_cache, full_disk_is_said, new_npy, open_cache, refuse_full_disk
from .picked_images import PickedImages


#: Images `[b, C, H, W]` in [-1, 1] to float `[b, *shape]`, each row a function of its own image.
Encode = Callable[[torch.Tensor], torch.Tensor]
PROGRESS = "progress.json"
BATCHES_BETWEEN_SYNCS = 16  # what an interruption may cost


def map_images(
    images: PickedImages | torch.Tensor, readable: torch.Tensor, encode: Encode, *, shape: tuple[int, ...],
    folder: Path, made_of: str, batch_size: int, at_most: int, device: torch.device, shown: bool = True,
    check: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """
    `encode` of each image, in the order of the images; those of an earlier call, where it was the same.

    Whether a record fails is decided by itself: a batch in which `encode` raises is encoded again one by one, each
    beside blanks in a batch of the same shape, so that all others get the bits that they would have got. A record that
    fails, or whose row is not finite in float16, is not readable from then on.

    Args:
        images (`torch.Tensor` or `PickedImages` of uint8, shape `[n, C, H, W]`): See `stored_images`.
        readable (`torch.Tensor` of bool, shape `[n]`): The others are not looked at.
        encode (`Callable`): See `Encode`.
        shape (`tuple`): Shape of one row.
        folder (`Path`): Where the rows are kept; a private one.
        made_of (`str`): The `fingerprint` of images and encoder.
        batch_size (`int`): Images at a time.
        at_most (`int`): The declared number of images, with which the bar ends.
        device (`torch.device`): Device of the batches.
        shown (`bool`): Whether there is a bar.
        check (`Callable`): Called before rows are kept for a later start; raises where they must not be.

    Returns:
        `np.ndarray` of float16, shape `[n, *shape]`, mapped into memory and read-only, and `np.ndarray` of bool,
        shape `[n]`: which rows are readable. Zeros elsewhere.

    Raises:
        UsageError: The disk is full.
        IntegrityError: What was kept is damaged.
        MemoryError, torch.OutOfMemoryError, RuntimeError: Memory ran out, or `encode` fails on blanks, too.
    """
    kept = open_cache(folder, made_of)
    if kept is None:
        begun, num_bytes = folder.with_name(f".{folder.name}.begun"), at_most * (2 * math.prod(shape) + 1)
        what = f"encoded images, {num_bytes / 1e9:.3g} GB"
        with full_disk_is_said(folder.parent, what, "and start again: what is encoded stays"):
            done = _done(begun, made_of)
            hidden = {} if shown else {"disable": True}  # not `False`, which outvotes TQDM_DISABLE
            refuse_full_disk(begun, num_bytes - done * (2 * math.prod(shape) + 1))
            with (
                new_npy(begun / "images.npy", "<f2", len(images), *shape, rows=done) as rows,
                new_npy(begun / "readable.npy", "|b1", len(images), rows=done) as flags,
                tqdm(total=at_most, initial=min(done, at_most), desc="Encoding images", unit="image", **hidden) as bar,
            ):
                for number, start in enumerate(range(done, len(images), batch_size), start=1):
                    chosen = torch.arange(start, min(start + batch_size, len(images)))
                    there = readable[chosen]
                    batch = torch.zeros(batch_size, *images.shape[1:], dtype=torch.uint8)
                    batch[: len(chosen)][there] = images[chosen[there]]
                    encoded = _encoded(encode, batch.to(device).float() / 127.5 - 1, shape)[: len(chosen)]
                    there = there & encoded.flatten(1).isfinite().all(1)
                    rows.write(torch.where(there.view(-1, *[1] * len(shape)), encoded, 0.0).numpy().tobytes())
                    flags.write(there.numpy().tobytes())
                    if number % BATCHES_BETWEEN_SYNCS == 0:
                        check()
                        _note(begun, made_of, start + len(chosen), rows, flags)
                    bar.update(min(batch_size, at_most - bar.n))
                check()
                bar.update(at_most - bar.n)  # the bar ends at the declared number, however many images there are
            (begun / PROGRESS).unlink(missing_ok=True)
            finish_cache(begun, folder, made_of)
        kept = open_cache(folder, made_of) or {}
    for name, dtype, expected in (("images", "<f2", (len(images), *shape)), ("readable", "|b1", (len(images),))):
        if name not in kept or kept[name].dtype.str != dtype or kept[name].shape != expected:
            raise damaged(folder / f"{name}.npy")
    return kept["images"], kept["readable"]


def _encoded(encode: Encode, images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Encodes a batch: float16 `[b, *shape]` on the CPU, NaN where a record fails."""

    def rows_of(batch: torch.Tensor) -> torch.Tensor:
        rows = encode(batch.clone())  # which may be written to
        if rows.shape != (len(batch), *shape):
            raise ValueError(f"The encoder makes {tuple(rows.shape)} of {len(batch)} images, not a row for each.")
        return rows.to("cpu", torch.float16)

    try:
        return rows_of(images)
    except Exception as error:  # whatever a record does to the encoder
        _refuse_out_of_memory(error)
    blanks = torch.full_like(images, -1)
    row = rows_of(blanks)[:1]  # what fails on these is no record's fault
    encoded = []
    for number in range(len(images)):
        alone = blanks.clone()
        alone[number] = images[number]
        try:
            encoded.append(rows_of(alone)[number : number + 1])
        except Exception as error:
            _refuse_out_of_memory(error)
            encoded.append(torch.full_like(row, torch.nan))
    return torch.cat(encoded)


def _refuse_out_of_memory(error: Exception) -> None:
    """It depends on shapes and not on a record: the run stops."""
    if is_memory_error(error):
        raise error


def _done(begun: Path, made_of: str) -> int:
    """How many rows an interrupted call has left; the folder is there afterwards."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        state = json.loads((begun / PROGRESS).read_bytes())
        if state["made_of"] == made_of:
            return int(state["rows"])
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    return 0


def _note(begun: Path, made_of: str, rows: int, *files: BinaryIO) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    replace_file(begun / PROGRESS, json.dumps({"made_of": made_of, "rows": rows}).encode())
