# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""JSON and YAML that users or strangers wrote, read with bounds on size, depth and numbers. No torch.

YAML is read without its traps: aliases, merge keys and tags are refused; dates, and numbers to the base 8, 16 or 60,
are text.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .untrusted_files import read_bounded


MOST_DEPTH, MOST_PARTS, MOST_DIGITS = 16, 200_000, 40  # of lists and mappings; of a whole number
#: What no page or terminal can show: control characters and halves of surrogate pairs.
UNSHOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: Plain words of YAML that are no text, null first: their tag, their form, their first characters.
PLAIN = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", list("tTfFyYnNoO")),
    ("int", rf"[-+]?(?:0|[1-9][0-9_]{{0,{MOST_DIGITS - 1}}})", list("-+0123456789")),
    ("float", r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?", list("-+0123456789")),
)


def read_json_file(path: Path, named: str, remedy: str, *, most: int) -> Any:
    """Reads a JSON file that a flag names.

    Args:
        path (`Path`): File.
        named (`str`): Its flag and name, for the message.
        remedy (`str`): End of the message, such as "give the file that the command wrote".
        most (`int`): Largest number of bytes.

    Raises:
        UsageError: It is no regular file of that size in UTF-8, or no JSON; a name occurs twice; or it holds numbers
            that are not finite or too long, text that cannot be shown, or values that are nested too deeply.
    """
    return _read(path, named, remedy, most, parse_json)


def read_yaml_file(path: Path, named: str, remedy: str, *, most: int, as_text: bool = False) -> Any:
    """Reads a YAML file that a flag names. Arguments and errors: see `read_json_file`. Aliases and tags are refused.

    Args:
        as_text (`bool`): Whether every value but null is the text that stands there, such as `yes` or `0x10`.
    """
    return _read(path, named, remedy, most, lambda text: parse_yaml(text, as_text=as_text))


def _read(path: Path, named: str, remedy: str, most: int, parse: Callable[[str], Any]) -> Any:
    try:
        content = read_bounded(path, most)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8") from None
        return parse(text)
    except OSError as error:
        reason = error.strerror
    except (ValueError, RecursionError) as error:  # ValueError: also of a null byte in the name of the file
        reason = "its values are nested too deeply" if isinstance(error, RecursionError) else str(error)
    raise UsageError(f"{named} cannot be read ({reason}); {remedy}.") from None


def _checked(value: Any) -> Any:
    layer = [value]
    for _ in range(MOST_DEPTH):
        names = [name for each in layer if isinstance(each, dict) for name in each]
        if any(isinstance(each, str) and UNSHOWN.search(each) for each in (*names, *layer)):
            raise ValueError("it holds control characters")
        if any(isinstance(each, float) and not math.isfinite(each) for each in layer):
            raise ValueError("it holds a number that is not finite")
        inner = [each.values() if isinstance(each, dict) else each for each in layer if isinstance(each, dict | list)]
        layer = [value for values in inner for value in values]
    if layer:
        raise RecursionError
    return value


def parse_json(text: str) -> Any:
    """Reads JSON as `read_json_file` does. Raises `ValueError` or `RecursionError`."""
    if text.count("[") + text.count("{") > MOST_PARTS:  # each takes far more memory than its letters
        raise ValueError("it has too many parts")
    try:
        return _checked(json.loads(text, object_pairs_hook=_unique, parse_int=_whole))
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON, line {error.lineno}") from None


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("it holds a number that is too long")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def parse_yaml(text: str, *, as_text: bool = False) -> Any:
    """Reads YAML as `read_yaml_file` does. Raises `ValueError` or `RecursionError`."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Knows no type but those of `PLAIN`, lists and mappings."""

        yaml_implicit_resolvers: dict[Any, Any] = {}

    def mapping(loader: Any, node: Any) -> dict[str, Any]:
        if not all(isinstance(name, yaml.ScalarNode) for name, _ in node.value):
            raise ValueError("a name is no text")
        return _unique([(name.value, loader.construct_object(value, deep=True)) for name, value in node.value])

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    for name, form, first in PLAIN[:1] if as_text else PLAIN:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{form})\Z"), first)
    depth = 0
    try:
        for event in yaml.parse(text, Loader):  # before anything is built
            named = getattr(event, "anchor", None), getattr(event, "tag", None)
            if isinstance(event, yaml.AliasEvent) or named != (None, None):
                raise ValueError(f"it has an anchor, alias or tag in line {event.start_mark.line + 1}")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise RecursionError
        return _checked(yaml.load(text, Loader))
    except (yaml.YAMLError, OverflowError) as error:  # OverflowError: no letter has that number
        mark = getattr(error, "problem_mark", None)
        raise ValueError("it is not YAML" + ("" if mark is None else f", line {mark.line + 1}")) from None


def leaves_of(value: Any) -> Iterator[Any]:
    """All that a value of JSON or YAML holds, however deep, but its lists and mappings."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            waiting += each.values() if isinstance(each, dict) else each
        else:
            yield each


def bounded_number(value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """A number of parsed JSON. Raises `ValueError` for other values, and beyond the limits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError
    return float(value)


def bounded_text(value: Any, most: int = 1_000) -> str:
    """A text of parsed JSON, of at most `most` letters. Raises `ValueError` for other values."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError
    return value


def plain_facts(facts: dict, what: str) -> dict:
    """The facts as a reader of a file sees them. Raises `UsageError` where they are no JSON values."""
    try:
        return json.loads(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} must be plain JSON: {error}.") from error
