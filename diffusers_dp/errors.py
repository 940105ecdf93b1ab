# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Errors that a user can meet, each with the exit code of the command that it stops.

Every message is one or two sentences that name the flag or file and the remedy. Bugs of the program (a wrong shape, a
missing key) stay ordinary Python exceptions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def first_line(error: BaseException) -> str:
    """Returns another library's error message as a reason to quote in a sentence, or its type if it has no message.
    The message can hold a stranger's text, of any length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


def printable(text: str) -> str:
    """Text for a terminal: control characters, which a stranger's file can hold, are written as escapes."""
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def install(extra: str) -> str:
    """How to install packages that few runs need. No index has this library: its name there could be anybody's."""
    return f'in a copy of the repository, run pip install -e ".[{extra}]"'


class DiffusersDPError(Exception):
    """Base class of all errors that end a command on purpose.

    Attributes:
        exit_code (`int`): Exit code of the process.
        is_told (`bool`): Whether another process of the run prints the message.
    """

    exit_code = 1
    is_told = False


class UsageError(DiffusersDPError):
    """A flag, value or budget cannot work; nothing was spent or written. Also raised when the machine lacks disk space
    (even later in a run) or memory to decode images.

    Args:
        message (`str`): One sentence. With `field` it begins after the name of the flag.
        field (`str`, *optional*): Field of the flags that is wrong. A caller whose flag has another name replaces it.
    """

    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None):
        super().__init__(message)
        self.field = field

    def __str__(self) -> str:
        return self.args[0] if self.field is None else f"--{self.field} {self.args[0]}"


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors in here name other flags.

    Args:
        names (mapping): Names of flags, by the fields that errors carry.
    """
    try:
        yield
    except UsageError as error:
        error.field = names.get(error.field or "", error.field)
        raise


class BudgetExceeded(DiffusersDPError):
    """The next query would exceed the privacy target; it was not asked."""

    exit_code = 3


class IntegrityError(DiffusersDPError):
    """A file on disk (ledger, checkpoint, receipt) does not have the content it must have."""

    exit_code = 4


class ProcessLost(DiffusersDPError):
    """Another process of the run ended; the run can be resumed."""

    exit_code = 75


class Interrupted(BaseException):
    """SIGTERM asked the run to stop; it can be resumed.

    Like `KeyboardInterrupt`, it is not an `Exception`, so that code which handles exceptions does not swallow it.

    Attributes:
        exit_code (`int`): `EX_TEMPFAIL` of sysexits.h, "try again".
        is_told (`bool`): Whether another process of the run prints the message.
    """

    exit_code = 75
    is_told = False
