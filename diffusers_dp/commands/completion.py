# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp completion`: a script with which a shell completes commands, methods and flags.

eval "$(diffusers-dp completion)"
"""

import argparse
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules

from ..methods.config import CONFIGS


SCRIPT = """\
_diffusers_dp() {{
    local words command="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}"
    case "$COMP_CWORD,$command" in
        1,*) words="{commands}" ;;
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _diffusers_dp diffusers-dp
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = 'For bash, and for zsh after `autoload bashcompinit && bashcompinit`: eval "$(%(prog)s)"'


def run(args: argparse.Namespace) -> None:
    commands = words_of_commands()
    methods = {name: [f"--{flag.name}" for flag in fields(config)] for name, config in CONFIGS.items()}
    cases = {"2,train *": list(methods)}
    cases |= {f"*,train {name}": [*flags, "--help", "--help_all"] for name, flags in methods.items()}
    cases |= {f"*,{name} *": words for name, words in commands.items()}
    lines = (f'        {_quoted(case)}) words="{" ".join(words)}" ;;' for case, words in cases.items())
    print(SCRIPT.format(commands=" ".join(commands), cases="\n".join(lines)), end="")


def words_of_commands() -> dict[str, list[str]]:
    """Each command's flags and choices."""
    folder = import_module(__package__)
    found = {}
    for name in sorted(each.name for each in iter_modules(folder.__path__)):
        module = import_module(f"{__package__}.{name}")
        if hasattr(module, "add_arguments") and hasattr(module, "run"):
            parser = argparse.ArgumentParser()
            module.add_arguments(parser)
            flags = [flag for action in parser._actions for flag in action.option_strings if flag[:2] == "--"]
            choices = [str(each) for action in parser._actions if not action.option_strings
                       for each in action.choices or ()]  # fmt: skip
            found[name] = choices + flags
    return found


def _quoted(case: str) -> str:
    """A pattern of bash, in which a space stands for itself."""
    return case.replace(" ", "\\ ")
