# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The folder of a run: what is in it before, who works in it, and how a run ended. No torch.

And which release it makes: what that is called in the ledger of its data set, and how often it was resumed.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard

from ..distributed.interruption import DISK_ERRORS, GO_ON, in_one_sentence, undisturbed
from ..errors import DiffusersDPError, IntegrityError, Interrupted, UsageError
from ..files.file_modes import private_files, refuse_unwritable
from ..files.journal import replace_file, sync_folder
from ..release.marked import FOLDER
from ..verify import FORMAT, RECEIPT_NAME


logger = logging.getLogger(__name__)

STATUS_FILE = "status.json"
DERIVED = "model"  # folder of a second release, see `TrainingRun.release_derived`
AUDIT_FILE = "audit.json"  # of `diffusers-dp audit`, which may come before a run


class RunFolder:
    """
    The folder of one run. `private/` never leaves the house, `release/` may.

    Args:
        output_dir (`str` or `Path`): `--output_dir`.

    Attributes:
        private, release (`Path`): The two folders; `create` makes the first one, mode 700.
    """

    def __init__(self, output_dir: str | Path):
        self.output_dir = Path(output_dir)
        self.private = self.output_dir / "private"
        self.release = self.output_dir / "release"
        self._lock: int | None = None
        self._made = False
        self._made_folders: list[Path] = []

    def refuse_another_run(self, *, resume: bool = False) -> bool:
        """
        Look before anything long begins; nothing is written.

        Args:
            resume (`bool`, defaults to `False`): As for [`create`].

        Returns:
            `bool`: Whether the folder is new.

        Raises:
            UsageError: The folder holds another run, or something of somebody else's where a run puts its result.
            IntegrityError: It holds a result, and nothing of the run that made it: going on would spend a new budget.
        """
        self._refuse_place()
        derived = self.output_dir / DERIVED / self.release.name
        results = {self.release: RECEIPT_NAME, derived: RECEIPT_NAME, self.output_dir / FOLDER: "model_index.json"}
        found = [folder for folder in results if folder.is_file() or folder.is_dir() and any(folder.iterdir())]
        for folder in found:
            if not (folder / results[folder]).is_file():
                raise UsageError(
                    f"--output_dir {self.output_dir} holds {folder.name}, which no run made and this one would "
                    "replace: choose another folder."
                )
        if resume and found and not (self.private / IDENTITY_NAME).exists():
            raise IntegrityError(
                f"{found[0]} shows that a run has spent its budget here, and {self.private.name}/{IDENTITY_NAME} is "
                "missing: restore private/ from a backup, or choose another folder."
            )
        made = not self.private.exists() or [path.name for path in self.private.iterdir()] == [AUDIT_FILE]
        if not resume and (not made or self.release.exists() or (self.output_dir / FOLDER).exists()):
            raise UsageError(
                f"--output_dir {self.output_dir} holds another run: choose another folder, or go on with that run by "
                "--resume_from_checkpoint latest."
            )
        return made

    def _refuse_place(self) -> None:
        """Raises `UsageError` where no folder can be made, or another run has its results or secrets."""
        above = [self.output_dir, *self.output_dir.absolute().parents]
        for folder in above:
            if (folder / RECEIPT_NAME).is_file() or (folder.name == "private" and (folder / IDENTITY_NAME).is_file()):
                raise UsageError(
                    f"--output_dir {self.output_dir} lies in {folder} of another run: choose a folder outside of it."
                )
        refuse_unwritable(self.output_dir, "--output_dir")

    def create(self, *, resume: bool = False) -> None:
        """
        Make `private/` and lock the folder until [`close`] or the end of the process.

        Args:
            resume (`bool`, defaults to `False`): Go on in a folder that holds a run; it may also be new.

        Raises:
            UsageError: The folder holds another run, another process works in it, or it cannot be made.
            IntegrityError: As [`refuse_another_run`].
        """
        made = self.refuse_another_run(resume=resume)
        try:
            self._made = made
            self._made_folders = [folder for folder in (self.private, *self.private.parents) if not folder.exists()]
            self.private.mkdir(parents=True, exist_ok=True)
            self.private.chmod(0o700)
            sync_folder(self.output_dir)  # a power cut must not take the ledger's folder with it
            lock = os.open(self.private / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            self._remove_made_folders()
            raise UsageError(
                f"--output_dir {self.output_dir} cannot be used: {error.strerror}; give another."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 20).decode()
            os.close(lock)
            raise UsageError(
                f"--output_dir {self.output_dir} is in use by process {pid}: wait for it, or choose another folder."
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock
        try:
            (self.private / STATUS_FILE).unlink(missing_ok=True)  # what an earlier start said is not how this one ends
        except OSError as error:
            self.close()
            raise UsageError(
                f"{self.private / STATUS_FILE} cannot be replaced ({error.strerror}): remove it."
            ) from None
        if resume and self._made:
            logger.warning(
                "--output_dir %s held no run: this is a new one, and it spends a budget of its own.", self.output_dir
            )

    @contextmanager
    def discarded_on(
        self, error: type[BaseException], has_asked: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Leave nothing half-written: an error of this type, before a query was asked, removes `private/`, provided
        that this run's `create` made it, and the folders that it made on the way there; an audit that was there stays.

        Args:
            error (`type`): Of a start, any; of a run, one that refuses a flag, because what was interrupted can be
                resumed.
            has_asked (`Callable`): Whether the ledger holds a row.
        """
        try:
            yield
        except error:
            if self._made and not has_asked():
                self.close()
                kept = self.private / AUDIT_FILE
                for path in self.private.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path)
                    elif path != kept:
                        path.unlink()
                if not kept.exists():
                    self.private.rmdir()
                self._remove_made_folders()
            raise

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """
        Around a run, after [`create`]: only its owner can read what it writes, `private/status.json` says how it
        ended, and the lock is given back.

        Raises:
            UsageError: Memory or disk space was too short.
            IntegrityError: `private/` was removed meanwhile, or something in it cannot be used.
        """
        try:
            with private_files(), in_one_sentence():
                try:
                    yield
                    self.write_status(0, "done")
                except Exception as error:
                    if self._lock is not None and not self.private.is_dir():
                        raise IntegrityError(
                            f"{self.private} was removed while the run worked in it: put it back from a backup, for "
                            "what was spent stays spent."
                        ) from error
                    if self._lies_in_private(error):
                        raise IntegrityError(
                            f"{error.filename} cannot be used ({error.strerror}): put back what the run had there."
                        ) from error
                    raise
        except (DiffusersDPError, Interrupted, KeyboardInterrupt) as error:
            with suppress(OSError), undisturbed():  # without room, or without the folder, it stays unwritten
                if isinstance(error, KeyboardInterrupt):
                    self.write_status(130, f"stopped by Ctrl-C: {GO_ON}")
                else:
                    self.write_status(error.exit_code, str(error))
            raise
        finally:
            self.close()

    def write_status(self, exit_code: int, message: str) -> None:
        """
        Write `private/status.json`, for launchers swallow the exit code: 0 done, 2 usage, 3 budget, 4 integrity, 75
        resumable, 130 Ctrl-C. A run that was refused the folder owns nothing in it and writes nothing.
        """
        if self._lock is None:
            return
        content = json.dumps({"exit_code": exit_code, "message": message}, indent=2).encode()
        with private_files():
            replace_file(self.private / STATUS_FILE, content)

    def _lies_in_private(self, error: Exception) -> TypeGuard[OSError]:
        """Whether a file or folder in `private/` is of another kind, or closed; a full disk is told otherwise."""
        if not isinstance(error, OSError) or error.filename is None or error.errno in DISK_ERRORS:
            return False
        return Path(os.fsdecode(error.filename)).absolute().is_relative_to(self.private.absolute())

    def _remove_made_folders(self) -> None:
        """Those of them that are empty: others may have put something there meanwhile."""
        for folder in self._made_folders:
            with suppress(OSError):
                folder.rmdir()

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
