# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which release a run folder makes: what it is called in the ledger of its data set, and how often it was resumed. No torch."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import IntegrityError, UsageError


IDENTITY_NAME = "run.json"


@dataclass
class RunIdentity:
    """What `private/run.json` holds.

    Args:
        dataset_id (`str`, *optional*): Name of the data set, `None` where the run has a ledger to itself.
        release_id (`str`, *optional*): Random name of this release in the data set's ledger; tells nothing.
        resumes (`list[int]`): The DP-SGD step at which the run went on, each time that it did.
    """

    dataset_id: str | None = None
    release_id: str | None = None
    resumes: list[int] = field(default_factory=list)


def read_identity(private: Path, dataset_id: str | None) -> RunIdentity:
    """The identity of the run in a folder, or a new one where there is none yet; writes nothing.

    Raises:
        IntegrityError: The file is damaged.
        UsageError: The run was started with another `--dataset_id`.
    """
    path = private / IDENTITY_NAME
    if not path.exists():
        return RunIdentity(dataset_id, None if dataset_id is None else os.urandom(8).hex())
    try:
        identity = RunIdentity(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise IntegrityError(f"{path} is damaged: restore the file.") from None
    if identity.dataset_id != dataset_id:
        wanted = (
            "leave --dataset_id out" if identity.dataset_id is None else f"give --dataset_id {identity.dataset_id}"
        )
        raise UsageError(
            f"This run is written in another ledger, and two would not add up: {wanted}, as at its start."
        )
    return identity


def open_identity(private: Path, dataset_id: str | None, *, resumed_at: int | None) -> RunIdentity:
    """As `read_identity`, but the file is there when this returns, before the first question is asked.

    Args:
        resumed_at (`int`, *optional*): The step at which the run goes on.
    """
    identity = read_identity(private, dataset_id)
    if resumed_at is not None:
        identity.resumes.append(resumed_at)
    temporary = private / f".{IDENTITY_NAME}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(asdict(identity), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, private / IDENTITY_NAME)
    return identity
