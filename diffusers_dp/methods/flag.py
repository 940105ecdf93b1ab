# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a flag says about itself, in one place, and the one check of all flags. Loads no torch."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..verify import WITHOUT, without_guarantee


#: Most images, steps or features. A release holds no more images, and its receipt no more steps.
MOST = 10_000_000
#: Bounds of a number that is not counted: far from what is sensible, and well inside of a 32-bit float.
SMALLEST, LARGEST = 1e-9, 1e9
SMALLEST_SHARE = 1e-6  # a smaller one has no noise multiplier within float's reach


@dataclass(frozen=True)
class Flag:
    """
    What a flag says about itself.

    Args:
        default (`Any`): Default of the group; a method may have another.
        help (`str`): Help text.
        rare (`bool`): Whether few runs need it: `--help_all` shows it.
        expert (`bool`): Whether it is no flag of its own: a recipe sets it under `expert:`, a command line by
            `--expert name=value`.
        at_least, above, at_most, below (`float`, *optional*): Bounds of a number, or of each number of a list. Unset:
            an integer is from 1 to `MOST`, another number from `SMALLEST` to `LARGEST`.
        choices (`tuple`): All values, or all items of a list.
        or_else (`Any`): One more value, outside of the bounds.
        read (`Callable`, *optional*): Parser of a text: returns a number, a tuple, or numbers by names; or raises
            `ValueError`.
        range (`str`): Range in words; unset: as bounds and choices say it.
        place (`bool`): Whether it may name a file or a folder.
        metavar (`str`): Placeholder of the value in the help of a command; unset: TEXT or NUMBER.
        needs (`tuple[str, ...]`): Flags without which this one cannot be given.
        only_with (`str`): Flag without which this one has no effect. A recipe may give it all the same.
        excludes (`tuple[str, ...]`): Flags that say the same in another way. The command line's choice replaces the
            recipe's.
    """

    default: Any
    help: str
    rare: bool = False
    expert: bool = False
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    or_else: Any = None
    read: Callable[[str], Any] | None = None
    range: str = ""
    place: bool = False
    metavar: str = ""
    needs: tuple[str, ...] = ()
    only_with: str = ""
    excludes: tuple[str, ...] = ()

    def takes(self, value: Any) -> bool:
        """Whether the value is in the flag's range."""
        if value is None or isinstance(value, bool) or value == self.or_else:
            return True
        if isinstance(value, str) and self.read is None and not self.choices:
            return bool(value.strip()) or self.default == ""
        try:
            value = self.read(value) if self.read is not None else value
        except (ValueError, OverflowError):
            return False
        value = list(value.values()) if isinstance(value, dict) else value
        items = value if isinstance(value, tuple | list) else (value,)
        return all(map(self._holds, items)) and (len(items) > 0 or self.default == "")

    def _holds(self, item: Any) -> bool:
        if self.choices or not isinstance(item, int | float):
            return not self.choices or item in self.choices
        least, most = self._bounds(type(item))
        low = item >= least if self.above is None else item > self.above
        return bool(low and (item <= most if self.below is None else item < self.below))

    def _bounds(self, kind: type) -> tuple[float, float]:
        least, most = (1, MOST) if kind is int else (SMALLEST, LARGEST)
        return least if self.at_least is None else self.at_least, most if self.at_most is None else self.at_most

    def in_words(self, kind: type) -> str:
        """The range in words; empty for any text and for a switch.

        Args:
            kind (`type`): Type of the value.
        """
        if self.range or kind is bool:
            return self.range
        if self.choices:
            return f"one of {' | '.join(map(str, self.choices))}"
        if kind is str:
            return ""
        least, most = map(_number, self._bounds(kind))
        low = f"at least {least}" if self.above is None else f"above {self.above:g}"
        high = f"at most {most}" if self.below is None else f"below {self.below:g}"
        words = f"{'an integer' if kind is int else 'a number'} that is {low} and {high}"
        return words if self.or_else is None else f"{words}, or {self.or_else}"


def flag(default: Any, text: str, **said: Any) -> Any:
    """A field of a group of flags, with its default, its help text, and what else a `Flag` says."""
    return field(default=default, metadata={"flag": Flag(default, text, **said)})


def expert(default: Any, text: str, **said: Any) -> Any:
    """The same of a setting of experts, see `Flag.expert`."""
    return flag(default, text, expert=True, **said)


def flags_of(config_class: type[Any]) -> Mapping[str, Flag]:
    """What each flag of a configuration says about itself. A method that has a default of its own says no more."""
    return {
        each.name: each.metadata["flag"]
        for group in reversed(config_class.__mro__)
        for each in vars(group).get("__dataclass_fields__", {}).values()
        if "flag" in each.metadata
    }


def plain_flags(config_class: type[Any]) -> list[str]:
    """Names of its flags, without settings of experts."""
    return [name for name, each in flags_of(config_class).items() if not each.expert]


def validate(config: Any) -> None:
    """
    Refuses flags that cannot be, before anything is read, spent or written: each flag by itself, then what the `check`
    of each group of flags says of several, the most general group first.

    Args:
        config (`TrainingConfig`): A configuration.

    Raises:
        UsageError: One sentence that names the flag and the remedy.
    """
    said = flags_of(type(config))
    check_values(config)
    given = {each.name: value for each in fields(config) if (value := getattr(config, each.name)) != each.default}
    for name in filter(given.__contains__, said):
        for other in said[name].needs:
            if not getattr(config, other):
                raise UsageError(f"--{name} needs --{other}: give both, or neither.")
    refuse_two_ways(type(config), given)
    for group in reversed(type(config).__mro__):
        if "check" in vars(group):
            vars(group)["check"](config)


def check_values(config: Any) -> None:
    """The first part of `validate`: each flag by itself. Raises `UsageError`."""
    for name, each in flags_of(type(config)).items():
        value = getattr(config, name)
        if not each.takes(value):
            words = each.in_words(type(value)) or "a value, or leave the flag out"
            raise UsageError(f"--{'expert ' * each.expert}{name} is {_shown(value)}; give {words}.")
        if each.place and value:
            _check_place(name, value)


def refuse_two_ways(config_class: type[Any], given: Mapping[str, Any]) -> None:
    """Raises `UsageError` where two of the values say the same in two ways."""
    for first, second in excluding(config_class):
        if given.get(first) is not None and given.get(second) is not None:
            raise UsageError(f"--{first} and --{second} exclude each other; give one of them.")


def refuse_without_effect(config: Any, given: Collection[str]) -> None:
    """Raises `UsageError` where a flag of the command line has no effect without another one. A recipe may give it all
    the same, because the command line may replace the other one."""
    for name, each in flags_of(type(config)).items():
        if each.only_with and name in given and not getattr(config, each.only_with):
            if getattr(config, name) != getattr(type(config), name):
                raise UsageError(f"--{name} needs --{each.only_with}: give both, or neither.")


def excluding(config_class: type[Any]) -> list[tuple[str, str]]:
    """Pairs of flags that say the same in two ways."""
    said = flags_of(config_class)
    return [(name, other) for name, each in said.items() for other in each.excludes if other in said]


def split_list(text: str) -> tuple[str, ...]:
    """Splits a comma-separated flag; spaces around the items and empty items do not count."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def distinct(text: str) -> tuple[str, ...]:
    """The same, of items that differ. Raises `ValueError`."""
    items = split_list(text)
    if len(set(items)) < len(items):
        raise ValueError(text)
    return items


def integers(text: str) -> tuple[int, ...]:
    """A comma-separated flag as integers. Raises `ValueError`."""
    return tuple(int(item) for item in split_list(text))


def numbers(text: str) -> tuple[float, ...]:
    """A comma-separated flag as numbers. Raises `ValueError`."""
    return tuple(float(item) for item in split_list(text))


def by_name(text: str) -> dict[str, str]:
    """Items `name=value` of a comma-separated flag, by name; the last of a name counts."""
    return {item.partition("=")[0].strip(): item for item in split_list(text)}


def named_numbers(text: str) -> dict[str, float]:
    """A comma-separated flag `name=value` as numbers by name. Raises `ValueError`."""
    return {name: float(item.partition("=")[2]) for name, item in by_name(text).items()}


def parse_rate(text: str) -> Fraction:
    """
    Reads a sample rate exactly, so that floor(qN) is not at the mercy of rounding.

    Args:
        text (`str`): A decimal (`"0.1"`) or a fraction (`"1/14"`).

    Returns:
        `Fraction`: The rate.

    Raises:
        `ValueError`: It is neither.
    """
    try:
        return Fraction(text.strip())
    except ZeroDivisionError as error:
        raise ValueError(f"{text} divides by zero") from error


#: What a flag says that holds a sample rate.
RATE: dict[str, Any] = {
    "read": lambda text: float(parse_rate(text)), "above": 0, "at_most": 1,
    "range": "a number above 0 and up to 1, such as 0.1 or 1/14",
}  # fmt: skip
#: What a flag says that holds a share of the budget.
SHARE = {"at_least": SMALLEST_SHARE, "below": 1}


def _check_place(name: str, place: str) -> None:
    """Refuses a file or folder that the system cannot look for, and a model without a guarantee."""
    place = os.path.expanduser(place)
    try:
        os.stat(os.path.join(place, "private/ledger.jsonl"))  # the longest name that a run writes there
    except (FileNotFoundError, NotADirectoryError):  # whoever opens it says so
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it holds a null character"
        shown = ascii(place)[1:201].rstrip(chr(39))
        raise UsageError(f"--{name} {shown} cannot be opened ({reason}); give another.") from None
    if without_guarantee(Path(place)):
        raise UsageError(f"--{name} {place} was {WITHOUT}, and no run can start from it; give another.")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'" if len(value) < 200 else "a text of more than 200 characters"
    return "far too large" if isinstance(value, int) and abs(value) >= 10**18 else str(value)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
