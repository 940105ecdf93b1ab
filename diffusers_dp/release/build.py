# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The public folder: an allow-list of files, built aside and moved into place atomically."""

import json
from pathlib import Path
from typing import Any

from ..files.canonical import canonical_json
from ..files.file_modes import give_ordinary_modes, public_files
from ..files.journal import written_whole
from ..randomness.private_generator import EXACT_RNG_FACTS, RNG_FACTS
from ..verify import CARD_NAME, PRIVACY_FIELDS, RECEIPT_NAME, settled_digest
from .artefacts import Artefact, write_text
from .receipt import RunRecord, build_receipt, hash_release, is_exact


@public_files()
def build_release(output_dir: str | Path, artefact: Artefact, record: RunRecord) -> Path:
    """Writes `output_dir/release/`: card, receipt, and exactly the artefact's files.

    The folder is built in a temporary sibling and renamed, so that a release is complete or absent. An earlier one is
    replaced. Nothing is read from `output_dir`.

    Args:
        output_dir (`str` or `Path`): Folder of the run.
        artefact (`Artefact`): Artefact to publish.
        record (`RunRecord`): Facts about the run, for the receipt.

    Returns:
        `Path`: `output_dir/release`.

    Raises:
        UsageError: The method has no guarantee, or the run has none.
        RuntimeError: The artefact saved other files than it lists.
    """
    with written_whole(Path(output_dir, "release")) as release:
        artefact.save(release)
        saved = {path.relative_to(release).as_posix() for path in release.rglob("*") if path.is_file()}
        if saved != set(artefact.files):
            raise RuntimeError(f"A release of these files was not made: {sorted(saved ^ set(artefact.files))}.")
        rng = EXACT_RNG_FACTS if is_exact(record.ledger) else RNG_FACTS
        receipt = build_receipt(record, files=hash_release(release), rng=rng)
        write_text(release / RECEIPT_NAME, canonical_json(receipt))
        index = json.loads((release / "model_index.json").read_text(encoding="utf-8"))
        write_text(release / "model_index.json", canonical_json({**index, "privacy": privacy_statement(receipt)}))
        write_text(release / CARD_NAME, f"{artefact.card(receipt)}\n")
        give_ordinary_modes(release)
    return Path(output_dir, "release")


def privacy_statement(receipt: dict[str, Any]) -> dict[str, Any]:
    """Builds the privacy field of `model_index.json`: the run accountant's claim, and the hash of the receipt."""
    claim = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    stated = {name: receipt[name] for name in PRIVACY_FIELDS}
    return {"epsilon": claim, **stated, "receipt_sha256": settled_digest(receipt)}
