# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The errors a user can meet, each with the exit code of the command that stops because of it.

Every message is one sentence or two that name the flag or the file and the remedy. Faults of the program itself
(a wrong shape, a missing key) stay ordinary Python exceptions.
"""


def first_line(error: BaseException) -> str:
    """What another library says was wrong, as the reason within a sentence of ours; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class DiffusersDPError(Exception):
    """Base of all errors that end a command on purpose.

    Attributes:
        exit_code (`int`): what the process returns to the shell.
        is_told (`bool`): another process of the run prints the message.
    """

    exit_code = 1
    is_told = False


class UsageError(DiffusersDPError):
    """A flag, a value or a budget that cannot work from the start; nothing was spent and nothing was written. Or what
    the machine lacks: disk space, later as well, or memory to decode images."""

    exit_code = 2


class BudgetExceeded(DiffusersDPError):
    """The next question would cost more than the target; it was not asked."""

    exit_code = 3


class IntegrityError(DiffusersDPError):
    """A file on disk does not say what it must say (ledger, checkpoint, receipt)."""

    exit_code = 4


class ProcessLost(DiffusersDPError):
    """Another process of the run ended; the run can be resumed."""

    exit_code = 75


class Interrupted(BaseException):
    """SIGTERM asked the run to stop; it can go on later.

    Like `KeyboardInterrupt` no `Exception`: nobody who handles faults of his own on the way takes it for one of them.

    Attributes:
        exit_code (`int`): `EX_TEMPFAIL` of sysexits.h, "try again".
        is_told (`bool`): another process of the run prints the message.
    """

    exit_code = 75
    is_told = False
