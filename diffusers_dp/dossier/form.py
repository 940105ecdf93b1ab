# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What remains the institution's to decide: a form, and its answers in YAML."""

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.untrusted_values import read_yaml_file
from ..methods.command_line import nearest
from .texts import texts


MOST_CONTEXT, LONGEST_ANSWER = 200_000, 5_000  # bytes, letters


def read_context(path: Path | None) -> dict[str, str]:
    """Reads the answers; none without a file.

    Args:
        path (`Path`, *optional*): YAML file with a text for each answered question.

    Raises:
        UsageError: The file cannot be read, or holds other than texts by the names of the form.
    """
    if path is None:
        return {}
    remedy = "give a line `name: text` for each answer, such as `purpose: ...`"
    found = read_yaml_file(path, f"--context {path}", remedy, most=MOST_CONTEXT, as_text=True)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"--context {path} holds no answers: {remedy}.")
    return {name: _answer(path, name, value) for name, value in found.items() if value is not None}


def _answer(path: Path, name: str, value: Any) -> str:
    names = [each for group in texts()["questions"].values() for each in group]
    if name not in names:
        found = nearest(name, names)
        known = f"names are {', '.join(names)}" if found is None else f"the nearest is '{found}'"
        raise UsageError(f"--context {path} answers {name[:80]!r}, which is no question of the form; {known}.")
    if not isinstance(value, str) or len(value) > LONGEST_ANSWER:
        raise UsageError(
            f"--context {path}: the answer to '{name}' must be a text of at most {LONGEST_ANSWER:,} letters."
        )
    return value.strip()
