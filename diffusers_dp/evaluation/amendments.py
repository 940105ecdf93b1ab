# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Additions of an evaluation to a release: a count, and numbers only if they are published on purpose. No torch."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..release.hub import intact_receipt
from ..verify import guarantee, settled_digest
from ..words import CARD_NAME, LOWERED_STATUS, RECEIPT_NAME
from .analyses import ANALYSES
from .complexity import DRAWN_IMAGES
from .measurement import Measurement


INDEX_NAME = "model_index.json"
HONESTY = "- The receipt is the trainer's statement"  # last line of the card's list of what is not covered
BEGIN, END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
#: Metrics that a card may contain, for the release as a whole; a name may end with a feature space in brackets.
METRICS_IN_CARD = {title for each in ANALYSES.values() for title in each.titles}
READ_SYNTHETIC_IMAGES_ALONE = {title for each in ANALYSES.values() if not each.reads_real for title in each.titles}
#: Protocol fields that a card may contain: no hash that depends on private images, and no count of these.
PROTOCOL_IN_CARD = (
    "extractor", "features", "synthetic_images", "seed", "covariance", "kernel", "subsets", "classes", "splits", "k",
    "neighbours", "judged_on", "folds", "chance", "num_images", "levels", "origin", "classifier", "trained_on",
    "tested_on", "num_train", "num_validation", "ensemble", "selection", "private_selection", "seeds", "epochs",
    "chosen_epochs",
)  # fmt: skip
WITHIN_IN_CARD = {
    "features": (
        "weights", "weights_sha256", "layer", "dimension", "preprocessing", "steps", "batch_size", "learning_rate",
        "seed",
    ),
    "origin": (
        "drawn_from", "num_inference_steps", "solver", "trajectory_length", "guidance_scale", "num_images", "seed",
    ),
    "private_selection": ("epsilon", "delta", "candidates"),
}  # fmt: skip
FITTED_ON_REAL_IMAGES = "classifier"  # feature space whose weights depend on the real images
COUNTS_OF_REAL_IMAGES = ("real_images", "real_test_images", "images_per_domain", "subset_size", "num_test")
ERRORS_WITHOUT_A_COUNT = ("seeds", "the draw of the subsets")  # other errors of a share reveal the number of images


def count_evaluation(release: str | Path) -> int:
    """Increments the receipt's `private_evaluations`, which the hashes leave out. Call it before reading the private
    images.

    Args:
        release (`str` or `Path`): Folder of a release.

    Returns:
        `int`: Count that includes this evaluation.

    Raises:
        UsageError: The folder contains no release, or cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release).resolve()
    with _locked(folder):
        receipt = intact_receipt(folder, "--model")
        count = receipt["private_evaluations"] + 1
        _replace(folder, {RECEIPT_NAME: canonical_json({**receipt, "private_evaluations": count})})
    return count


def publish(release: str | Path, measurements: Sequence[Measurement], *, read_private_data: bool) -> None:
    """Writes numbers of the whole release to a section of its card, which a later call replaces; leaves others out.

    The guarantee does not cover numbers from private images: the receipt lists them in `leaky_outputs`, and its status
    becomes `proven_except_leaky_outputs`. The published protocol reveals nothing more about these images. If a call is
    killed between two files, the next call of this module finishes it.

    Args:
        release (`str` or `Path`): Folder of a release.
        measurements (sequence of `Measurement`): Measured numbers.
        read_private_data (`bool`): Whether they come from images that were not declared public.

    Raises:
        UsageError: The folder contains no release, or cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release).resolve()
    measurements = [_for_card(found, read_private_data) for found in measurements if _is_of_the_release(found)]
    leaky = [found for found in measurements if read_private_data and found.metric not in READ_SYNTHETIC_IMAGES_ALONE]
    with _locked(folder):
        receipt = intact_receipt(folder, "--model")
        card = (folder / CARD_NAME).read_text(encoding="utf-8")
        before = guarantee(receipt)
        files = _lowered(folder, receipt, leaky) if leaky else {}
        card = card.replace(before, guarantee(receipt))
        for output in receipt["leaky_outputs"] if leaky else []:
            line = f"- What else was written: {output}.\n"
            card = card if line in card else card.replace(HONESTY, line + HONESTY)
        files[CARD_NAME] = _with_section(
            card, _section(measurements, read_private_data)
        )  # last, so that numbers never appear before the lowered status
        _replace(folder, files)


def recover(release: str | Path) -> None:
    """Finishes a `publish` that was killed.

    Raises:
        UsageError: The folder does not exist, or cannot be written.
    """
    folder = Path(release).resolve()
    if folder.is_dir() and _pending(folder).is_dir():
        with _locked(folder):
            pass


def is_writable(release: str | Path) -> bool:
    """Tells whether an evaluation can write to a release and to the folder around it, where new files wait."""
    folder = Path(release).resolve()
    return os.access(folder, os.W_OK) and os.access(folder.parent, os.W_OK)


def check_writable(release: str | Path) -> None:
    """Checks before a long evaluation what `publish` and `count_evaluation` need after it.

    Raises:
        UsageError: The folder contains no release, or it or the folder around it cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    intact_receipt(Path(release), "--model")
    if not is_writable(release):
        raise UsageError(
            f"--model {release} or the folder around it cannot be written; copy the release to a folder that can."
        )


def _is_of_the_release(found: Measurement) -> bool:
    """Tells whether a number describes the release: not a class, an earlier state, or a classifier of real images."""
    of_a_part = {"class", "state"} & found.protocol.keys()
    if found.metric in READ_SYNTHETIC_IMAGES_ALONE and found.protocol.get("features") != DRAWN_IMAGES:
        return False
    trained_on = found.protocol.get("trained_on", "synthetic")
    return not of_a_part and trained_on == "synthetic" and found.metric.split(" (")[0] in METRICS_IN_CARD


def _for_card(found: Measurement, read_private_data: bool) -> Measurement:
    protocol: dict[str, Any] = {}
    for key, value in found.protocol.items():
        if isinstance(value, dict):
            value = {name: value[name] for name in WITHIN_IN_CARD.get(key, ()) if name in value}
            if found.protocol.get("extractor") == FITTED_ON_REAL_IMAGES:
                value.pop("weights_sha256", None)
        if key in PROTOCOL_IN_CARD or (key in COUNTS_OF_REAL_IMAGES and not read_private_data):
            protocol[key] = value
    error, error_of = found.standard_error, str(found.protocol.get("standard_error_of", ""))
    if read_private_data and found.metric not in READ_SYNTHETIC_IMAGES_ALONE:
        if not error_of.endswith(ERRORS_WITHOUT_A_COUNT):
            error, error_of = None, ""
    unit = {"unit": found.protocol["unit"]} if "unit" in found.protocol else {}
    return Measurement(found.metric, found.value, {**protocol, "standard_error_of": error_of, **unit}, error)


def _lowered(folder: Path, receipt: dict[str, Any], measurements: Sequence[Measurement]) -> dict[str, str]:
    """Returns receipt and `model_index.json` with the status for published numbers that no guarantee covers."""
    names = ", ".join(sorted({measurement.metric for measurement in measurements}))
    output = f"evaluation against private images, published in the model card: {names}"[:1000]
    receipt["leaky_outputs"] = sorted({*receipt["leaky_outputs"], output})
    receipt["status"] = LOWERED_STATUS
    index = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
    index["privacy"] |= {"status": LOWERED_STATUS, "receipt_sha256": settled_digest(receipt)}
    return {RECEIPT_NAME: canonical_json(receipt), INDEX_NAME: canonical_json(index)}


def _section(measurements: Sequence[Measurement], read_private_data: bool) -> str:
    if all(found.metric in READ_SYNTHETIC_IMAGES_ALONE for found in measurements):
        heading, words = "Evaluation of the images alone", "Measured on images of this release alone."
    elif read_private_data:
        heading = "Evaluation against private images"
        words = (
            "Measured against private images. **These numbers are not covered by the guarantee**: the receipt lists "
            "them among its `leaky_outputs`."
        )
    else:
        heading = "Evaluation against public images"
        words = (
            "Measured against images that whoever published this release declares public; this is the trainer's "
            "statement."
        )
    rows = [
        f"| {_cell(found.metric.replace('_', ' '))} | {_number(found)} | {_cell(protocol_words(found.protocol))} |"
        for found in measurements
    ]
    return "\n".join(
        [BEGIN, f"## {heading}", "", words, "", "| metric | value | protocol |", "|---|---|---|", *rows, END]
    )


def protocol_words(protocol: dict[str, Any]) -> str:
    """Formats a protocol in one line, `extractor pixels, seed 0, ...`, without empty values."""
    return ", ".join(
        f"{key.replace('_', ' ')} {_value_words(value)}"
        for key, value in protocol.items()
        if value not in (None, [], {}, "", [None]) and key != "unit"
    )


def _value_words(value: Any) -> str:
    if isinstance(value, dict):
        return f"({protocol_words(value)})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(_value_words, value)) if isinstance(value, (list, tuple)) else str(value)


def _number(measurement: Measurement) -> str:
    spread = "" if measurement.standard_error is None else f" (s.e. {measurement.standard_error:.2g})"
    unit = measurement.protocol.get("unit", "")
    return f"{measurement.value:.5g}{unit if unit in ('', '%') else f' {unit}'}{spread}"


def _cell(text: str) -> str:
    """Escapes external text for a Markdown table: no new column, no markup, no HTML."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _with_section(card: str, section: str) -> str:
    if BEGIN in card and END in card:
        before, after = card.split(BEGIN, 1)[0], card.split(END, 1)[1]
        return f"{before}{section}{after}"
    return f"{card.rstrip()}\n\n{section}\n"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder itself, so that no count is lost and no lock file remains. First finishes a call that was
    killed."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(
            f"--model {folder} cannot be opened ({error.strerror}); give the folder of a release."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _finish(folder)
        yield
    except OSError as error:
        raise UsageError(
            f"--model {folder} or the folder around it cannot be written ({error.strerror}); copy it to a folder that "
            "can."
        ) from None
    finally:
        os.close(lock)


@public_files()
def _replace(folder: Path, files: dict[str, str]) -> None:
    """Replaces files of a release, all or none: all are written beside it before the first is moved, and `_finish`
    completes the moves. The folder never contains a file that the receipt does not list."""
    pending = _pending(folder)
    begun = pending.with_suffix(".tmp")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir()
    for name, text in files.items():
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
