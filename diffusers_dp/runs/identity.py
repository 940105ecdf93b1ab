# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which release a run folder makes: what it is called in the ledger of its data set, and how often it was resumed. No
torch."""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import IntegrityError, UsageError
from ..files.journal import replace_file
from ..words import FORMAT


IDENTITY_NAME = "run.json"
#: What is in `private/` only after a query was asked, whichever ledger holds it.
_TRACES = ("answers/*", "checkpoint-[1-9]*", "trained/*/checkpoint-[1-9]*")
_LEFT_OUT = ("listing", "training_facts")  # of the file, where they are empty


@dataclass
class RunIdentity:
    """What `private/run.json` holds.

    Args:
        dataset_id (`str`, *optional*): Name of the data set, `None` where the run has a ledger to itself.
        release_id (`str`, *optional*): Random name of this release in the data set's ledger; tells nothing.
        ledger (`str`): Absolute path of its ledger.
        resumes (`list[int]`): The DP-SGD step at which the run went on, each time that it did.
        public_inputs (`list[dict]`): Origins of the weights and images from elsewhere that its weights began with.
        processes (`list[int]`): How many processes it had, at each start.
        asked (`bool`): Whether its ledger holds a row.
        listing (`str`): `data.images.listing_of` its images, where `--noise_bands` keeps them in the groups of their
            places; else empty, and not written.
        noise (`dict`): Noise multipliers of its first start, see `noise_of`.
        training_facts (`dict`): Facts of its flags at its start, for its receipt. Not written where empty.
    """

    dataset_id: str | None = None
    release_id: str | None = None
    ledger: str = ""
    resumes: list[int] = field(default_factory=list)
    public_inputs: list[dict[str, Any]] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    asked: bool = False
    listing: str = ""
    noise: dict[str, Any] = field(default_factory=dict)
    training_facts: dict[str, Any] = field(default_factory=dict)

    def keep_training_facts(self, facts: dict[str, Any], *, began: bool) -> None:
        """Of the flags as they are now. Those of a run that began are kept: its receipt would be wrong about the part
        that is over.

        Raises:
            UsageError: One differs.
        """
        facts = json.loads(json.dumps(facts))
        if began:
            for name in sorted({*facts, *self.training_facts}):
                now, then = facts.get(name), self.training_facts.get(name)
                if now != then:
                    remedy = "leave it out" if then is None else f"give {then}"
                    raise UsageError(
                        f"--{name} is {now}, and this run began with {then}: {remedy}, or start another --output_dir."
                    )
        self.training_facts = facts

    def refuse_other_inputs(self, now: list[dict[str, Any]]) -> None:
        """For a run that goes on with DP-SGD: what it trained beside is what its receipt will name.

        Args:
            now (`list[dict]`): Origins of the weights and images that the flags name.

        Raises:
            UsageError: One has other weights, files or images than any that the run began with.
        """
        known = [_content(origin) for origin in self.public_inputs]
        for origin in now:
            if _content(origin) not in known:
                raise UsageError(
                    f"This run began with another {origin.get('kind')} than the flags name now: resume with the first "
                    "one, or start another --output_dir."
                )


def _content(origin: dict[str, Any]) -> list[Any]:
    """By which two inputs are told apart, whatever they are called or their card says."""
    return [origin.get(f"{name}_sha256") for name in ("weights", "files", "images")]


def read_identity(private: Path, dataset_id: str | None, ledger: Path) -> RunIdentity:
    """The identity of the run in a folder, or a new one where there is none yet; writes nothing.

    Args:
        private (`Path`): The run's private folder.
        dataset_id, ledger: `--dataset_id` and the file of its ledger, as they are now.

    Raises:
        IntegrityError: The file is damaged; or it or the ledger is missing, though the run has asked something.
        UsageError: The run was started with another `--dataset_id` or `--ledger_dir`.
    """
    path = private / IDENTITY_NAME
    traces = [trace for pattern in _TRACES for trace in private.glob(pattern)]
    if not path.exists():
        # What it forgets cannot be made anew: that there were public inputs, or other starts.
        if dataset_id is None and ledger.exists():
            traces.append(ledger)
        if traces:
            raise IntegrityError(f"{path} is missing, but {traces[0]} shows that the run has begun: restore the file.")
        return RunIdentity(dataset_id, None if dataset_id is None else os.urandom(8).hex(), str(ledger.resolve()))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stated = content.pop("format", None)
        identity = RunIdentity(**content)
        _check_types(identity)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise IntegrityError(f"{path} is damaged: restore the file.") from None
    if stated != FORMAT:
        raise IntegrityError(
            f'{path} does not state "format": "{FORMAT}": continue with the version that wrote it, or start again in '
            "another --output_dir."
        )
    moved = dataset_id is not None and identity.ledger != str(ledger.resolve())
    if identity.dataset_id != dataset_id or moved:
        wanted = "leave --dataset_id out"
        if identity.dataset_id is not None:
            wanted = f"give --dataset_id {identity.dataset_id} --ledger_dir {Path(identity.ledger).parent}"
        raise UsageError(
            f"This run is written in another ledger, and two would not add up: {wanted}, as at its start."
        )
    if not ledger.exists() and (traces or identity.asked):
        raise IntegrityError(
            f"{ledger} is missing, but the run has asked the images: restore it, for what was spent stays spent."
        )
    return identity


def _check_types(identity: RunIdentity) -> None:
    """Raises `TypeError` where a value is of another type than `RunIdentity` gives it."""
    new = RunIdentity()
    for name in (each.name for each in fields(RunIdentity)):
        value, default = getattr(identity, name), getattr(new, name)
        if not isinstance(value, (str, type(None)) if default is None else type(default)):
            raise TypeError(name)
    if not all(type(number) is int for number in (*identity.resumes, *identity.processes)):
        raise TypeError("resumes, processes")
    if not all(isinstance(origin, dict) for origin in identity.public_inputs):
        raise TypeError("public_inputs")


def save_identity(private: Path, identity: RunIdentity) -> None:
    """Writes `private/run.json`, durably: before the first query is asked."""
    facts = {name: value for name, value in asdict(identity).items() if value or name not in _LEFT_OUT}
    replace_file(private / IDENTITY_NAME, json.dumps({"format": FORMAT, **facts}).encode())


def note_asked(private: Path, identity: RunIdentity) -> None:
    """Writes that the ledger holds a row, once it does: a ledger that is gone later is then missed. An identity that
    was never saved is none of a run's."""
    if (private / IDENTITY_NAME).exists():
        identity.asked = True
        save_identity(private, identity)
