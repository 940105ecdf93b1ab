# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp completion`: a script with which a shell completes commands, methods, flags and their values.

eval "$(diffusers-dp completion)"
"""

import argparse
from importlib import import_module
from pkgutil import iter_modules

import shtab

from ..methods.command_line import LONG_HELP, add_flags
from ..methods.config import CONFIGS
from ..methods.registry import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = 'In ~/.bashrc: eval "$(%(prog)s)". In ~/.zshrc, after compinit: eval "$(%(prog)s zsh)".'
    parser.add_argument("shell", nargs="?", default="bash", choices=shtab.SUPPORTED_SHELLS, help="Who completes.")


def run(args: argparse.Namespace) -> None:
    print(shtab.complete(parser_of_all(), args.shell))


def parser_of_all() -> argparse.ArgumentParser:
    """One parser with every command, method and flag, which `shtab` reads; it parses nothing."""
    parser = argparse.ArgumentParser("diffusers-dp")
    commands = parser.add_subparsers()
    for name in sorted(each.name for each in iter_modules(import_module(__package__).__path__)):
        module = import_module(f"{__package__}.{name}")
        if not hasattr(module, "add_arguments") or not hasattr(module, "run"):
            continue
        command = commands.add_parser(name, help=(module.__doc__ or "").partition("`: ")[2])
        if name == "train":
            methods = command.add_subparsers()
            for method, config in CONFIGS.items():
                flags = methods.add_parser(method, help=METHODS[method].title)
                flags.add_argument("--help_all", action="store_true", help=LONG_HELP)
                add_flags(flags, config)
                _complete_files(flags)
        else:
            module.add_arguments(command)
            _complete_files(command)
    return parser


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Offers files for what takes one value, or stands without a flag, and has no choices."""
    for action in parser._actions:
        if not action.choices and (action.nargs is None or not action.option_strings):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
