# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation leaves in a release: a count, and numbers only if they are published on purpose. No torch."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..hub import intact_receipt
from ..receipt import RECEIPT_NAME, canonical_json
from ..verify import receipt_digest
from .measurement import Measurement


LOWERED_STATUS = "proven_except_leaky_outputs"
BEGIN, END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"


def count_evaluation(release: str | Path) -> int:
    """Adds one to the receipt's `private_evaluations`, which lies outside the hashes; called before the private images are read.

    Args:
        release (`str` or `Path`): Folder of a release.

    Returns:
        `int`: The count, this evaluation included.

    Raises:
        UsageError: The folder holds no release, or cannot be written.
        IntegrityError: The release is not what its receipt says.
    """
    folder = Path(release)
    with _locked(folder):
        receipt = intact_receipt(folder, "--model")
        count = receipt["private_evaluations"] + 1
        temporary = folder / f".{RECEIPT_NAME}.tmp"
        try:
            _write(temporary, canonical_json({**receipt, "private_evaluations": count}))
            os.replace(temporary, folder / RECEIPT_NAME)
        finally:
            temporary.unlink(missing_ok=True)
    return count


def publish(release: str | Path, measurements: Sequence[Measurement], *, read_private_data: bool) -> None:
    """Puts numbers into the card of a release, in a section of their own that a later call replaces.

    Numbers from private images are no part of the guarantee: they are listed in the receipt's `leaky_outputs`, and its status becomes
    `proven_except_leaky_outputs`. The folder is rebuilt beside itself, so that it is there whole, before or after.

    Args:
        release (`str` or `Path`): Folder of a release.
        measurements (sequence of `Measurement`): The numbers.
        read_private_data (`bool`): Whether they come from images that were not declared public.

    Raises:
        UsageError: The folder holds no release, or cannot be written.
        IntegrityError: The release is not what its receipt says.
    """
    folder = Path(release).resolve()
    with _locked(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".release-") as temporary:
        receipt = intact_receipt(folder, "--model")
        made = Path(shutil.copytree(folder, Path(temporary, "release")))
        if read_private_data:
            _lower(made, receipt, measurements)
        card = made / "README.md"
        _write(card, _with_section(card.read_text(encoding="utf-8"), _section(measurements, read_private_data)))
        os.rename(folder, Path(temporary, "previous"))
        os.rename(made, folder)


def check_writable(release: str | Path) -> None:
    """Refuses before a long evaluation what `publish` and `count_evaluation` could only refuse after it.

    Raises:
        UsageError: The folder holds no release, or cannot be written.
        IntegrityError: The release is not what its receipt says.
    """
    intact_receipt(Path(release), "--model")
    if not os.access(release, os.W_OK):
        raise UsageError(f"--model {release} cannot be written; copy the release to a folder that can.")


def _lower(folder: Path, receipt: dict[str, Any], measurements: Sequence[Measurement]) -> None:
    """States in the receipt and in `model_index.json` that something was published which no guarantee covers."""
    names = ", ".join(sorted({measurement.metric for measurement in measurements}))
    output = f"evaluation against private images, published in the model card: {names}"[:1000]
    receipt["leaky_outputs"] = sorted({*receipt["leaky_outputs"], output})
    receipt["status"] = LOWERED_STATUS
    _write(folder / RECEIPT_NAME, canonical_json(receipt))
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index["privacy"] |= {"status": LOWERED_STATUS, "receipt_sha256": receipt_digest(folder / RECEIPT_NAME)}
    _write(folder / "model_index.json", canonical_json(index))


def _section(measurements: Sequence[Measurement], read_private_data: bool) -> str:
    if read_private_data:
        words = (
            "Measured against private images. **These numbers are not covered by the guarantee**: the receipt lists them among "
            "its `leaky_outputs`."
        )
    else:
        words = "Measured against images that whoever published this release declares public; this is the trainer's statement."
    rows = [
        f"| {_cell(found.metric)} | {_number(found)} | {_cell(protocol_words(found.protocol))} |"
        for found in measurements
    ]
    return "\n".join(
        [BEGIN, "## Evaluation", "", words, "", "| metric | value | protocol |", "|---|---|---|", *rows, END]
    )


def protocol_words(protocol: dict[str, Any]) -> str:
    """A protocol as one line: `extractor pixels, seed 0, ...`, without what is empty."""
    return ", ".join(
        f"{key.replace('_', ' ')} {_plain(value)}"
        for key, value in protocol.items()
        if value not in (None, [], {}, "", [None]) and key != "unit"
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return f"({protocol_words(value)})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def _number(measurement: Measurement) -> str:
    spread = "" if measurement.standard_error is None else f" (s.e. {measurement.standard_error:.2g})"
    return f"{measurement.value:.5g}{measurement.protocol.get('unit', '')}{spread}"


def _cell(text: str) -> str:
    """Words from outside in a Markdown table: neither a new column, nor markup, nor HTML."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _with_section(card: str, section: str) -> str:
    if BEGIN in card and END in card:
        before, after = card.split(BEGIN, 1)[0], card.split(END, 1)[1]
        return f"{before}{section}{after}"
    return f"{card.rstrip()}\n\n{section}\n"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One at a time, or a count would be lost; the lock is on the folder itself and leaves no file."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(
            f"--model {folder} cannot be opened ({error.strerror}); give the folder of a release."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise UsageError(
            f"--model {folder} cannot be written ({error.strerror}); copy it to a folder that can."
        ) from None
    finally:
        os.close(lock)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
