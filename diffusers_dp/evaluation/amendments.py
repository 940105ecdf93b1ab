# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation adds to a release: a count, and no number. No torch."""

import fcntl
import os
from pathlib import Path

from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..files.journal import sync_folder, write_synced
from ..release.hub import intact_receipt
from ..words import RECEIPT_NAME


@public_files()
def count_evaluation(release: str | Path) -> None:
    """Increments the receipt's `private_evaluations`, which the hashes leave out. Call it before reading the private
    images.

    The folder is locked itself, and the new receipt is written beside it, so that the release never contains a file
    that the receipt does not list.

    Raises:
        UsageError: The folder contains no release, or cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release).resolve()
    beside = folder.with_name(f".{folder.name}.{RECEIPT_NAME}")
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            receipt = intact_receipt(folder, "--model")
            receipt["private_evaluations"] += 1
            write_synced(beside, canonical_json(receipt).encode())
            os.replace(beside, folder / RECEIPT_NAME)
            sync_folder(folder)
        finally:
            os.close(lock)
    except OSError as error:
        raise UsageError(f"--model {folder} cannot be written ({error.strerror}); copy it elsewhere.") from None


def is_writable(release: str | Path) -> bool:
    """Tells whether an evaluation can write to a release and to the folder around it, where the new receipt waits."""
    folder = Path(release).resolve()
    return os.access(folder, os.W_OK) and os.access(folder.parent, os.W_OK)
