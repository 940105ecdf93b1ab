# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which release a run folder makes: what it is called in the ledger of its data set, and how often it was resumed. No torch."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import IntegrityError, UsageError
from .journal import sync_folder


IDENTITY_NAME = "run.json"


@dataclass
class RunIdentity:
    """What `private/run.json` holds.

    Args:
        dataset_id (`str`, *optional*): Name of the data set, `None` where the run has a ledger to itself.
        release_id (`str`, *optional*): Random name of this release in the data set's ledger; tells nothing.
        ledger (`str`): Absolute path of its ledger.
        resumes (`list[int]`): The DP-SGD step at which the run went on, each time that it did.
        leaky_logs (`bool`): Whether it ever had `--leaky_logs`.
        public_inputs (`list[dict]`): Origins of the weights and images from elsewhere that its weights began with.
        processes (`list[int]`): How many processes it had, at each start.
    """

    dataset_id: str | None = None
    release_id: str | None = None
    ledger: str = ""
    resumes: list[int] = field(default_factory=list)
    leaky_logs: bool = False
    public_inputs: list[dict[str, Any]] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)


def read_identity(private: Path, dataset_id: str | None, ledger: Path) -> RunIdentity:
    """The identity of the run in a folder, or a new one where there is none yet; writes nothing.

    Args:
        private (`Path`): The run's private folder.
        dataset_id, ledger: `--dataset_id` and the file of its ledger, as they are now.

    Raises:
        IntegrityError: The file is damaged.
        UsageError: The run was started with another `--dataset_id` or `--ledger_dir`.
    """
    path = private / IDENTITY_NAME
    if not path.exists():
        return RunIdentity(dataset_id, None if dataset_id is None else os.urandom(8).hex(), str(ledger.resolve()))
    try:
        identity = RunIdentity(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise IntegrityError(f"{path} is damaged: restore the file.") from None
    moved = dataset_id is not None and identity.ledger != str(ledger.resolve())
    if identity.dataset_id != dataset_id or moved:
        wanted = "leave --dataset_id out"
        if identity.dataset_id is not None:
            wanted = f"give --dataset_id {identity.dataset_id} --ledger_dir {Path(identity.ledger).parent}"
        raise UsageError(
            f"This run is written in another ledger, and two would not add up: {wanted}, as at its start."
        )
    return identity


def save_identity(private: Path, identity: RunIdentity) -> None:
    """Writes `private/run.json`, durably: before the first question is asked."""
    temporary = private / f".{IDENTITY_NAME}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(asdict(identity), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, private / IDENTITY_NAME)
    sync_folder(private)
