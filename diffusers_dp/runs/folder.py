# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The folder of a run: what is in it before, who works in it, and how a run ended. No torch."""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeGuard

from ..distributed.interruption import DISK_ERRORS, GO_ON, in_one_sentence, undisturbed
from ..errors import DiffusersDPError, IntegrityError, Interrupted, UsageError
from ..files.file_modes import private_files, refuse_unwritable
from ..files.journal import replace_file, sync_folder
from ..release.marked import FOLDER
from ..words import RECEIPT_NAME
from .identity import IDENTITY_NAME


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
