# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Additions of an evaluation to a release: a count, and numbers only if they are published on purpose. No torch."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..files.templates import render
from ..release.hub import intact_receipt
from ..verify import guarantee, settled_digest
from ..words import CARD_NAME, LOWERED_STATUS, RECEIPT_NAME
from .analyses import ANALYSES
from .complexity import DRAWN_IMAGES
from .measurement import Measurement, protocol_words


INDEX_NAME = "model_index.json"
HONESTY = "- The receipt is the trainer's statement"  # last line of the card's list of what is not covered
BEGIN, END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
#: Metrics that a card may contain, for the release as a whole; a name may end with a feature space in brackets.
METRICS_IN_CARD = {title for each in ANALYSES.values() for title in each.titles}
READ_SYNTHETIC_IMAGES_ALONE = {title for each in ANALYSES.values() if not each.reads_real for title in each.titles}
#: Protocol fields that a card may contain, at their depth: no hash that depends on private images, and no count of
#: these.
PROTOCOL_IN_CARD = frozenset(
    "extractor synthetic_images seed covariance classes splits k neighbours judged_on num_images levels classifier "
    "fit trained_on tested_on num_train num_validation ensemble selection seeds epochs chosen_epochs unit "
    "features features.weights features.layer features.dimension features.preprocessing features.steps "
    "features.batch_size features.learning_rate features.seed "
    "origin origin.drawn_from origin.num_inference_steps origin.solver origin.trajectory_length "
    "origin.guidance_scale origin.num_images origin.seed".split()
)


def count_evaluation(release: str | Path) -> int:
    """Increments the receipt's `private_evaluations`, which the hashes leave out, and returns it. Call it before
    reading the private images.

    Raises:
        UsageError: The folder contains no release, or cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release).resolve()
    with _locked(folder):
        receipt = intact_receipt(folder, "--model")
        receipt["private_evaluations"] += 1
        _replace(folder, {RECEIPT_NAME: canonical_json(receipt)})
    return int(receipt["private_evaluations"])


def publish(release: str | Path, measurements: Sequence[Measurement], *, read_private_data: bool) -> None:
    """Writes numbers of the whole release to a section of its card, which a later call replaces; leaves others out.

    The guarantee does not cover numbers from private images: the receipt lists them in `leaky_outputs`, and its status
    becomes `proven_except_leaky_outputs`. The published protocol reveals nothing more about these images. If a call is
    killed between two files, the next call of this module finishes it. Raises what `count_evaluation` raises.

    Args:
        release (`str` or `Path`): Folder of a release.
        measurements (sequence of `Measurement`): Measured numbers.
        read_private_data (`bool`): Whether they come from images that were not declared public.
    """
    folder = Path(release).resolve()
    measurements = [_for_card(found, read_private_data) for found in measurements if _is_of_the_release(found)]
    leaky = sorted({found.metric for found in measurements} - READ_SYNTHETIC_IMAGES_ALONE) if read_private_data else []
    with _locked(folder):
        receipt, changed = intact_receipt(folder, "--model"), {}
        card, before = (folder / CARD_NAME).read_text(encoding="utf-8"), guarantee(receipt)
        if leaky:
            output = f"evaluation against private images, published in the model card: {', '.join(leaky)}"[:1000]
            receipt["leaky_outputs"] = sorted({*receipt["leaky_outputs"], output})
            receipt["status"] = LOWERED_STATUS
            index = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
            index["privacy"] |= {"status": LOWERED_STATUS, "receipt_sha256": settled_digest(receipt)}
            changed = {RECEIPT_NAME: canonical_json(receipt), INDEX_NAME: canonical_json(index)}
            card = card.replace(before, guarantee(receipt))
            for line in (f"- What else was written: {output}.\n" for output in receipt["leaky_outputs"]):
                card = card if line in card else card.replace(HONESTY, line + HONESTY)
        section = _section(measurements, read_private_data)
        begun, _, rest = card.partition(BEGIN)
        card = f"{begun}{section}{rest.partition(END)[2]}" if END in rest else f"{card.rstrip()}\n\n{section}\n"
        _replace(folder, {**changed, CARD_NAME: card})  # last, so that no number appears before the lowered status


def recover(release: str | Path) -> None:
    """Finishes a `publish` that was killed. Raises `UsageError` if the folder cannot be opened or written."""
    folder = Path(release).resolve()
    if folder.is_dir() and _pending(folder).is_dir():
        with _locked(folder):
            pass


def is_writable(release: str | Path) -> bool:
    """Tells whether an evaluation can write to a release and to the folder around it, where new files wait."""
    folder = Path(release).resolve()
    return os.access(folder, os.W_OK) and os.access(folder.parent, os.W_OK)


def _is_of_the_release(found: Measurement) -> bool:
    """Tells whether a number describes the release: not a class, an earlier state, or a classifier of real images."""
    facts, metric = found.protocol, found.metric.split(" (")[0]
    of_a_part = {"class", "state"} & facts.keys() or facts.get("trained_on", "synthetic") != "synthetic"
    of_others = metric in READ_SYNTHETIC_IMAGES_ALONE and facts.get("features") != DRAWN_IMAGES
    return metric in METRICS_IN_CARD and not of_a_part and not of_others


def _for_card(found: Measurement, read_private_data: bool) -> Measurement:
    error, error_of = found.standard_error, str(found.protocol.get("standard_error_of", ""))
    if read_private_data and found.metric not in READ_SYNTHETIC_IMAGES_ALONE and not error_of.endswith("seeds"):
        error, error_of = None, ""  # another error of a share reveals the number of images
    return Measurement(found.metric, found.value, {**_shown(found.protocol), "standard_error_of": error_of}, error)


def _shown(protocol: dict[str, Any], above: str = "") -> dict[str, Any]:
    return {
        name: _shown(value, f"{above}{name}.") if isinstance(value, dict) else value
        for name, value in protocol.items() if above + name in PROTOCOL_IN_CARD
    }  # fmt: skip


def _section(measurements: Sequence[Measurement], read_private_data: bool) -> str:
    alone = all(found.metric in READ_SYNTHETIC_IMAGES_ALONE for found in measurements)
    return render(
        "evaluation_section.md", escape=False, filters={"cell": _cell, "words": protocol_words},
        measurements=measurements, against="alone" if alone else "private" if read_private_data else "public",
    )  # fmt: skip


def _cell(text: str) -> str:
    """Escapes external text for a Markdown table: no new column, no markup, no HTML."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escape(" ".join(text.split()), quote=False))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder itself, so that no count is lost and no lock file remains. First finishes a call that was
    killed."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _finish(folder)
            yield
        finally:
            os.close(lock)
    except OSError as error:
        raise UsageError(
            f"--model {folder} or the folder around it cannot be written ({error.strerror}); copy the release to a "
            "folder that can."
        ) from None


@public_files()
def _replace(folder: Path, texts: dict[str, str]) -> None:
    """Replaces files of a release, all or none: all are written beside it before the first is moved, and `_finish`
    completes the moves. The folder never contains a file that the receipt does not list."""
    pending = _pending(folder)
    begun = pending.with_suffix(".tmp")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir()
    for name, text in texts.items():
        (begun / name).write_text(text, encoding="utf-8", newline="\n")
    os.rename(begun, pending)
    _finish(folder)


def _finish(folder: Path) -> None:
    pending = _pending(folder)
    if pending.is_dir():
        for name in (RECEIPT_NAME, INDEX_NAME, CARD_NAME):
            if (pending / name).exists():
                os.replace(pending / name, folder / name)
        pending.rmdir()


def _pending(folder: Path) -> Path:
    """Returns the folder of pending files, named by the release's file list so that no other release gets them."""
    try:
        listed = json.loads((folder / RECEIPT_NAME).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        listed = None
    mark = hashlib.sha256(canonical_json(listed).encode()).hexdigest()[:16]
    return folder.with_name(f".{folder.name}-{mark}.pending")
