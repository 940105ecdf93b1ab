# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of a configuration on a command line, and their help. Nothing heavier than argparse is loaded, so that a
typo is refused at once."""

import argparse
import difflib
import math
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from ..errors import UsageError
from .flag import named_numbers


#: What other libraries call our flags, which no spelling would find.
OTHER_NAMES = {
    "batch_size": "train_batch_size", "center_crop": "augmentations", "clip_norm": "max_grad_norm",
    "data": "train_data_dir", "data_dir": "train_data_dir", "dataset": "dataset_name", "delta": "target_delta",
    "eps": "target_epsilon", "epsilon": "target_epsilon", "folder": "train_data_dir", "image_size": "resolution",
    "lr": "learning_rate", "max_steps": "max_train_steps", "model": "pretrained_model_name_or_path",
    "num_classes": "class_names", "num_epochs": "max_train_steps", "num_train_epochs": "max_train_steps",
    "out": "output_dir", "output": "output_dir", "random_flip": "augmentations", "size": "resolution",
    "steps": "max_train_steps",
}  # fmt: skip
#: Groups of flags that come first, in the order in which a user decides; the method's own follow in theirs.
FIRST = ("data", "privacy", "run", "DP-SGD")
#: Groups of which `--help` shows nothing.
LATER = ("Hub", "run of DP-SGD")
SHORT_HELP = "Show the flags that most runs need, and exit."
LONG_HELP = "Show all flags, and exit."
EXPERT_HELP = "A setting that recipes have under expert:. Several are comma-separated, or the flag is repeated."
ALIKE = 0.5  # of difflib's ratio, from which names are alike
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def nearest(name: str, names: Collection[str]) -> str | None:
    """The known name that another library's name stands for, or that a misspelt one comes close to; `None`: there is
    none."""
    if (ours := OTHER_NAMES.get(name)) is not None:
        return ours if ours in names else None
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=ALIKE)), None)


def nearest_flag(name: str, names: Collection[str]) -> str:
    """The same in words, as the end of a sentence."""
    found = nearest(name.lstrip("-"), names)
    return "--help_all lists all" if found is None else f"the nearest is --{found}"


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of a flag that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.default is None or action.default is False or action.default == ""
        return action.help if told else super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """An expert setting is shown as it is given."""
        name = super()._format_action_invocation(action)
        return f"--expert {action.dest}={action.metavar}" if getattr(action, "expert", False) else name


class OneSentence(argparse.ArgumentParser):
    """Refuses in one sentence, without the usage."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Names the nearest choice alone, where one is near."""
        if action.choices and value not in action.choices and (found := nearest(value, list(action.choices))):
            raise argparse.ArgumentError(action, f"there is no '{value}', and the nearest is '{found}'")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {dash_remedy(message)}`{self.prog} --help` lists what can be given.")


def as_flags(stated: Mapping[str, Any]) -> list[str]:
    """Words of a command line, of values by flag."""
    texts = {name: f"{each:.12g}" if isinstance(each, float) else str(each) for name, each in stated.items()}
    # What begins with a dash is a flag to argparse where it is a word of its own.
    pairs = ([f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text] for name, text in texts.items())
    return [word for pair in pairs for word in pair]


def dash_remedy(message: str) -> str:
    """Explains how to give a path or a value that argparse took for a flag, or which method to give; empty for other
    messages of argparse."""
    if message.endswith("required: method"):
        return "`diffusers-dp plan` with the facts of your images names one that suits them; "
    taken = message.endswith(("expected one argument", "required: release"))
    return "a path that starts with a dash is given as ./-name, and a value as --flag=-1; " if taken else ""


class _Joined(argparse.Action):
    """A flag of several items, which may be given several times."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, "")
        setattr(namespace, self.dest, f"{before},{value}" if isinstance(before, str) else value)


class _PrintHelp(argparse.Action):
    """`--help`, and `--help_all`."""

    def __init__(self, option_strings: list[str], dest: str, *, shown: argparse.ArgumentParser, help: str):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self.shown = shown

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        self.shown.print_help()
        parser.exit()


def parser_of(config_class: type[Any], *, prog: str, description: str) -> argparse.ArgumentParser:
    """
    Args:
        config_class (`type`): A dataclass that inherits from groups of flags. A group has an `_argument_group_name`.
        prog, description (`str`): Name and description in the help.

    Returns:
        `argparse.ArgumentParser`: Of all its flags; it raises `argparse.ArgumentError`.
    """
    short = _build(config_class, prog, f"{description} {LONG_HELP.split(',')[0]}: --help_all.", short=True)
    parser = _build(config_class, prog, description, short=False)
    for each in (short, parser):
        each.add_argument("-h", "--help", action=_PrintHelp, shown=short, help=SHORT_HELP)
        each.add_argument("--help_all", action=_PrintHelp, shown=parser, help=LONG_HELP)
    return parser


def _build(config_class: type[Any], prog: str, description: str, *, short: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, usage="%(prog)s [--config RECIPE] [--FLAG VALUE ...]", description=description,
        formatter_class=Help, allow_abbrev=False, add_help=False, exit_on_error=False,
    )  # fmt: skip
    add_flags(parser, config_class, rare=not short, expert=not short, strict=False)
    if not short:
        parser.add_argument("--expert", metavar="NAME=VALUE", help=EXPERT_HELP)
    return parser


def add_flags(
    parser: argparse.ArgumentParser,
    config_class: type[Any],
    *,
    rare: bool = True,
    expert: bool = False,
    strict: bool = True,
) -> None:
    """Adds the flags of a dataclass to a parser, group by group.

    Args:
        config_class (`type`): A dataclass that inherits from groups of flags.
        rare (`bool`): Whether those are added that few runs need.
        expert (`bool`): Whether expert settings are added.
        strict (`bool`): Whether the parser itself refuses what is none of a flag's `choices`, and switches take no
            value, as commands have it. Training flags also come from recipes.
    """
    hints = get_type_hints(config_class)
    defaults = {flag.name: flag.default for flag in fields(config_class)}  # a method may have its own
    for title, group in groups_of(config_class).items():
        shown = [flag for flag in group if rare or not (title in LATER or flag.metadata["flag"].rare)]
        shown = [flag for flag in shown if expert or not flag.metadata["flag"].expert]
        if not shown:
            continue
        section = parser.add_argument_group(title)
        for flag in shown:
            _add(section, flag, hints[flag.name], defaults[flag.name], strict)


def groups_of(config_class: type[Any]) -> dict[str, list[Field]]:
    """The flags of a configuration by the titles of their groups, in the order of its help. A group has the flags of
    its class, and those of its bases that have no title."""
    groups: dict[str, list[Field]] = {}
    for group in reversed(config_class.__mro__):
        if (title := vars(group).get("_argument_group_name")) is not None:
            found = {flag.name for each in groups.values() for flag in each}
            groups[title] = [flag for flag in fields(group) if flag.metadata and flag.name not in found]
    own = [title for title in reversed(groups) if title not in (*FIRST, *LATER)]
    return {title: groups[title] for title in (*FIRST, *own, *LATER) if title in groups}


def _add(section: Any, flag: Field, hint: Any, default: Any, strict: bool) -> None:
    kind, said = value_type(hint), flag.metadata["flag"]
    text = said.help.replace("%", "%%")
    several = get_origin(kind) is Sequence
    kind = get_args(kind)[0] if several else kind
    value: dict[str, Any] = {
        "type": {float: finite, int: whole_number}.get(kind, kind),
        "nargs": "+" if several else None,
    }
    if strict and said.choices:
        value["choices"] = said.choices
    else:
        value["metavar"] = said.metavar or ("TEXT" if kind is str else "NUMBER")
    if said.read is named_numbers:
        value["action"] = _Joined
    if kind is bool and strict:
        value = {"action": "store_true"}
    elif kind is bool:
        value = {"type": _truth, "nargs": "?", "const": True, "metavar": "true|false"}
    section.add_argument(f"--{flag.name}", default=default, help=text, **value).expert = said.expert


def value_type(hint: Any) -> Any:
    """Type of a flag's value, from its annotation."""
    optional = get_origin(hint) in (Union, types.UnionType)
    return next(item for item in get_args(hint) if item is not type(None)) if optional else hint


def finite(text: str) -> float:
    """A number; `inf` is one, and what is too large for a float is not. Raises `argparse.ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if math.isinf(value) and text.strip().lstrip("+-").lower() not in ("inf", "infinity"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number, such as 0.001")
    return value


def whole_number(text: str) -> int:
    """A whole number. Raises `argparse.ArgumentTypeError`."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number, such as 1000") from None


def _truth(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")
    return _WORDS[text.lower()]
