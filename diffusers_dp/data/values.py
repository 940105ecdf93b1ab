# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a value of one record means, as a label or as an id. Nothing here depends on another record. No torch."""

import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any


#: Text that says "no id" or "no label", exactly in these spellings, after blanks around it are taken off. As ids they
#: would make one unit of all who have none.
NO_VALUE = frozenset({
    "", "NA", "N/A", "n/a", "na", "n.a.", "#N/A", "#NA", "<NA>", "NULL", "Null", "null", "NONE", "None", "none", "nil",
    "NIL", "NaN", "nan", "NAN", "-nan", "NaT", "-", "--", "?", "undefined", "missing",
})  # fmt: skip
MOST_SHOWN, LONGEST_SHOWN = 40, 80  # names in a message, and letters of one
#: Names of the types that columns of Parquet may have, by Arrow and by `datasets`.
TEXT = r"(large_)?string(_view)?"
ID_TYPE = rf"u?int\d+|(half)?float\d*|double|{TEXT}"
LABEL_TYPE = rf"bool|{ID_TYPE}"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}(\.0{0,18})?")
_BOOLEANS = {"true": 1, "True": 1, "TRUE": 1, "false": 0, "False": 0, "FALSE": 0}


def in_nfc(name: str) -> str:
    """A name in Unicode's form NFC: some systems write an accent as a character, others as part of one."""
    return unicodedata.normalize("NFC", name)


def integer_of(value: Any) -> int | None:
    """The whole number that a value is or says: `3`, `3.0`, `"3"`, `" 03 "`, `True`; `None` for all else."""
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    return int(text.partition(".")[0]) if _INTEGER.fullmatch(text) else None


def numbers_of(class_names: Sequence[str]) -> list[int] | None:
    """The names of the classes as different whole numbers, or as both booleans; `None` where they are not."""
    found = [number for name in class_names if (number := integer_of(name)) is not None]
    return found if len(found) == len(class_names) == len(set(found)) else None


def label_of(value: Any, class_names: Sequence[str]) -> int | None:
    """
    The place of one label in the declared label set.

    Text is a class of exactly that name, without blanks around it, its accents written in either form of Unicode. A
    number, or text that says one, is the class of that value where all names are numbers. Where no name is a number,
    it is a position in the declared order. Booleans are 1 and 0, also as names.

    Args:
        value: As the file has it: text, a number, a boolean, or `None`.
        class_names (sequence of `str`): The declared label set.

    Returns:
        `int` or `None`: From 0 to the number of classes less 1; `None` for no label, and for one not in the set.
    """
    if isinstance(value, str):
        if value.strip() in class_names:
            return list(class_names).index(value.strip())
        names = [in_nfc(name).strip() for name in class_names]
        if (text := in_nfc(value.strip())) in names:
            return names.index(text)
        if value.strip() in NO_VALUE:
            return None
    number, numbers = integer_of(value), numbers_of(class_names)
    if number is None:
        return None
    if numbers is not None:
        return numbers.index(number) if number in numbers else None
    # Where some names are numbers, a number could mean the name or the position.
    return number if are_positions(class_names) and 0 <= number < len(class_names) else None


def places_of(own: Sequence[str], declared: Sequence[str]) -> list[int] | None:
    """The declared place of each of a data set's own classes: by name, or by position where no name is even like one
    of the others. `None`: they cannot be matched, or two would be one."""
    exact, known = list(declared), [in_nfc(name).strip() for name in declared]
    found = [
        exact.index(name) if name in exact else known.index(plain)
        for name in own
        if (plain := in_nfc(name).strip()) in known
    ]
    if len(found) == len(own):
        return found if len(set(found)) == len(found) else None
    alike = set(map(bare, own)) & set(map(bare, declared))
    return list(range(len(own))) if len(own) == len(declared) and not alike else None


def class_of(names: Sequence[str], value: Any) -> str | None:
    """The name behind an integer of a `ClassLabel`; `None` where there is none."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def are_positions(class_names: Sequence[str]) -> bool:
    """Whether a whole number is a position in the declared order: where no name says a number or a boolean."""
    return not any(integer_of(name) is not None for name in class_names)


def listed(names: Collection[str]) -> str:
    """Names for a message: some of many, and the start of long ones."""
    shown = [name[:LONGEST_SHOWN] for name in islice(names, MOST_SHOWN)]
    return ", ".join(shown + ["..."] * (len(names) > MOST_SHOWN))


def positions(class_names: Sequence[str]) -> str:
    """One clause that says which position is which class."""
    shown = [f"{place} is {name}" for place, name in enumerate(class_names)]
    return ", ".join(shown if len(shown) <= 10 else [*shown[:9], "...", shown[-1]])


def why_no_label(value: Any, class_names: Sequence[str]) -> str | None:
    """Says why a value is none of the declared classes, for the house alone; `None` for one that is."""
    if label_of(value, class_names) is not None:
        return None
    text = value.strip() if isinstance(value, str) else value
    if text is None or text != text or (isinstance(text, str) and text in NO_VALUE):
        return "no label"
    if integer_of(value) is not None and numbers_of(class_names) is None and not are_positions(class_names):
        return f"{str(text)[:40]!r}, a number that could mean a name or a position: some names are numbers"
    return f"{str(text)[:40]!r}, which --class_names does not list{_hint(str(text), class_names)}"


def _hint(text: str, class_names: Sequence[str]) -> str:
    """What is near a label: another case, other blanks, underscores or commas."""
    near = next((name for name in class_names if bare(name) == bare(text) != ""), None)
    if near is not None:
        return f"; --class_names has {near}"
    if any(text in re.split(r"[;|\s]+", name) for name in class_names):
        return "; separate the names in --class_names by commas"
    return "; a name in --class_names holds no comma, so that the data needs another spelling" if "," in text else ""


def bare(text: str) -> str:
    """A name without case, blanks and punctuation: two of one kind are alike."""
    return re.sub(r"[\W_]+", "", text.casefold())


def id_of(value: Any) -> str | int | None:
    """
    The id that a value is.

    Text is compared as it is spelled, without blanks around it and in NFC: `7`, `7.0` and `007` are three ids, and a
    misspelt id is another one. A number is compared by value: 7 and 7.0 are one id, which is not that of the text `7`.

    Args:
        value: As the file has it.

    Returns:
        `str`, `int` or `None`: `None` for what `NO_VALUE` lists, for booleans, and for numbers that are not whole.
    """
    if isinstance(value, str):
        text = in_nfc(value.strip())
        return None if text in NO_VALUE or not is_unicode(text) else text
    return None if isinstance(value, bool) else integer_of(value)


def is_unicode(text: str) -> bool:
    """False for text with half a surrogate pair, which no file name and no hash can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
