# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp COMMAND`: what is done before a run, and with a release. Only the command that is asked for is
loaded."""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

from . import __version__
from .distributed.launcher import escape_output, leave, let_go_of_closed_pipes, let_threads_sleep
from .errors import DiffusersDPError, Interrupted, UsageError, printable
from .methods.command_line import Help, OneSentence
from .verify import CLOSED_PIPE


COMMANDS = {
    "app": "Open a page that draws from releases, and tells what they promise.",
    "audit": "Try to break the guarantee: of the mechanism, a training script, or a release.",
    "data": "Tell what a run would read of your images; this is private.",
    "dossier": "Write what a data-protection officer reads and signs about a release.",
    "evaluate": "Judge synthetic images against real ones: fidelity, utility, a report.",
    "methods": "List the methods, and what is proven of them.",
    "plan": "Which method suits your images; noise, steps and epsilon of a run, before an image is read.",
    "push": "Upload a release to the Hub, after a look at its receipt.",
    "recommend": "Another name of plan, which also tells the method that suits your images.",
    "sample": "Draw images from a release, as a dataset.",
    "train": "Train on sensitive images by a method's script, and release the model.",
    "verify": "Compare a release with its privacy receipt.",
}


def main(argv: list[str] | None = None) -> None:
    """Runs a command; exits with 2 after one sentence if its arguments cannot be."""
    let_threads_sleep()
    escape_output()
    code = 0
    try:
        run = _parse(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        _say_once(f"error: {printable(str(error))}")
        sys.exit(error.exit_code)
    try:
        run()
    except (DiffusersDPError, Interrupted) as error:
        if not error.is_told:
            print(f"error: {printable(str(error))}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        if not let_go_of_closed_pipes():
            raise
        code = CLOSED_PIPE
    except KeyboardInterrupt:
        _say_once("interrupted: what is finished stays, and the same command goes on from there.")
        code = 130
    leave(code)


def _parse(argv: list[str]) -> Callable[[], None]:
    """Returns the requested command, ready to run with its arguments. Raises `UsageError`."""
    parser = OneSentence(
        prog="diffusers-dp", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Differentially private image synthesis.\n\ncommands:\n"
        + "\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items()),
        epilog="`diffusers-dp COMMAND --help` lists what a command takes.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"diffusers_dp {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the above")
    if argv and argv[0] == "help":
        argv = [*argv[1:2], "--help"]
    name = parser.parse_args(argv[:1]).command
    command = import_module(f"{__package__}.commands.{name}")
    arguments = OneSentence(
        prog=f"diffusers-dp {name}", description=COMMANDS[name], formatter_class=Help, allow_abbrev=False
    )
    command.add_arguments(arguments)
    if "--model" in argv and "release" in arguments.format_usage().split():  # as `evaluate` has it
        arguments.error("the release is given without --model")
    args, others = arguments.parse_known_args(argv[1:])
    if "training_flags" in args:  # the command hands them on to `load_config`
        args.training_flags = others
    elif others:
        arguments.error(f"unrecognized arguments: {' '.join(others)}")
    return partial(command.run, args)


def _say_once(sentence: str) -> None:
    """What all processes of a machine have to say."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(sentence, file=sys.stderr)


if __name__ == "__main__":
    main()
