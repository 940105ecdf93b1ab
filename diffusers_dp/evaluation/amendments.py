# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Additions of an evaluation to a release: a count, and numbers only if they are published on purpose. No torch."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..files.journal import replace_file, sync_folder, write_synced
from ..files.templates import render
from ..release.hub import intact_receipt, verify_here
from ..verify import guarantee, settled_digest
from ..words import CARD_NAME, LOWERED_STATUS, RECEIPT_NAME
from .analyses import ANALYSES
from .measurement import Measurement, protocol_words


INDEX_NAME = "model_index.json"
HONESTY = "- The receipt is the trainer's statement"  # last line of the card's list of what is not covered
BEGIN, END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
#: Protocol fields that a card may contain, at any depth: no count of private images, and no hash that depends on them.
PROTOCOL_IN_CARD = frozenset(
    "extractor synthetic_images seed covariance classes splits k neighbours judged_on num_images classifier "
    "trained_on tested_on num_train num_validation ensemble selection seeds epochs chosen_epochs unit features "
    "weights layer dimension preprocessing steps batch_size learning_rate origin drawn_from num_inference_steps "
    "solver s_churn s_min s_max s_noise mixed_precision trajectory_length guidance_scale".split()
)


def count_evaluation(release: str | Path) -> None:
    """Increments the receipt's `private_evaluations`, which the hashes leave out. Call it before reading the private
    images.

    Raises:
        UsageError: The folder contains no release, or cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    with _amended(release) as (_, receipt, texts):
        receipt["private_evaluations"] += 1
        texts[RECEIPT_NAME] = canonical_json(receipt)


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
    shown = [_for_card(found, read_private_data) for found in measurements if _is_of_the_release(found)]
    section = render(
        "evaluation_section.md", escape=False, words=protocol_words, measurements=shown, private=read_private_data
    )
    with _amended(release) as (folder, receipt, texts):
        card, before = (folder / CARD_NAME).read_text(encoding="utf-8"), guarantee(receipt)
        if read_private_data and shown:
            names = ", ".join(sorted({found.metric for found in shown}))
            output = f"evaluation against private images, published in the model card: {names}"[:1000]
            receipt |= {"leaky_outputs": sorted({*receipt["leaky_outputs"], output}), "status": LOWERED_STATUS}
            index = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
            index["privacy"] |= {"status": LOWERED_STATUS, "receipt_sha256": settled_digest(receipt)}
            texts |= {RECEIPT_NAME: canonical_json(receipt), INDEX_NAME: canonical_json(index)}
            line, card = f"- What else was written: {output}.\n", card.replace(before, guarantee(receipt))
            card = card if line in card else card.replace(HONESTY, line + HONESTY)
        begun, _, rest = card.partition(BEGIN)
        card = f"{begun}{section}{rest.partition(END)[2]}" if END in rest else f"{card.rstrip()}\n\n{section}\n"
        texts[CARD_NAME] = card  # last, so that no number appears before the lowered status


def recover(release: str | Path) -> None:
    """Finishes a `publish` that was killed. Raises what `count_evaluation` raises."""
    with _amended(release):
        pass


def is_writable(release: str | Path) -> bool:
    """Tells whether an evaluation can write to a release and to the folder around it, where new files wait."""
    folder = Path(release).resolve()
    return os.access(folder, os.W_OK) and os.access(folder.parent, os.W_OK)


def _is_of_the_release(found: Measurement) -> bool:
    """Tells whether a number describes the release: not an earlier state (whose analysis has no titles), nor a
    classifier of real images."""
    of_synthetic = found.protocol.get("trained_on", "synthetic") == "synthetic"
    return found.metric.split(" (")[0] in ANALYSES[found.analysis].titles and of_synthetic


def _for_card(found: Measurement, read_private_data: bool) -> Measurement:
    error, error_of = found.standard_error, str(found.protocol.get("standard_error_of", ""))
    if read_private_data and not error_of.endswith("seeds"):
        error, error_of = None, ""  # another error of a share reveals the number of images
    return replace(found, protocol={**_shown(found.protocol), "standard_error_of": error_of}, standard_error=error)


def _shown(protocol: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _shown(value) if isinstance(value, dict) else value
        for name, value in protocol.items() if name in PROTOCOL_IN_CARD
    }  # fmt: skip


@contextmanager
def _amended(release: str | Path) -> Iterator[tuple[Path, dict[str, Any], dict[str, str]]]:
    """Yields the folder, the receipt, and a dict for the new texts of files by their names. Replaces these files in
    this order, all or none: the texts are on disk before the first is replaced, and the next call finishes one that
    was killed. The folder is locked itself, so that no lock file remains, and never contains a file that the receipt
    does not list. The pending texts are beside it, by the receipt's list of files: no other release gets them."""
    folder, texts = Path(release).resolve(), dict[str, str]()
    files = canonical_json(verify_here(folder, "--model")[0]["files"])
    pending = folder.with_name(f".{folder.name}-{hashlib.sha256(files.encode()).hexdigest()[:16]}.pending")
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _finish(folder, pending)
            yield folder, intact_receipt(folder, "--model"), texts
            if texts:
                replace_file(pending, json.dumps(list(texts.items())).encode())
                _finish(folder, pending)
        finally:
            os.close(lock)
    except OSError as error:
        raise UsageError(f"--model {folder} cannot be written ({error.strerror}); copy it elsewhere.") from None


@public_files()
def _finish(folder: Path, pending: Path) -> None:
    if pending.is_file():
        for name, text in json.loads(pending.read_bytes()):
            beside = pending.with_suffix(".file")
            write_synced(beside, text.encode())
            os.replace(beside, folder / name)
        sync_folder(folder)
        pending.unlink()
