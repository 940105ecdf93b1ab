# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What remains the institution's to decide: a form, and its answers in YAML."""

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.strange_values import read_yaml_file
from ..methods.command_line import nearest


MOST_CONTEXT, LONGEST_ANSWER = 200_000, 5_000  # bytes, letters
#: Questions by the name of their answer in the YAML file, grouped as the page shows them.
QUESTIONS: dict[str, dict[str, str]] = {
    "Purpose and responsibility": {
        "purpose": "What is the release for, and who will receive it?",
        "responsible": "Who is responsible for the images, and who decides about the release?",
        "legal_basis": "On which legal basis are the images used for this purpose?",
        "informed": "How were the people in the images informed, and who answers their objections?",
    },
    "What is protected": {
        "unit_is_person": "Does one protected unit hold everything about one person? If not, how many units may a "
        "person have?",
        "unit_checked": "Who checked that images of one person carry one identifier?",
        "parameters": "Why are this epsilon and this delta acceptable for these images?",
        "group_facts": "Can facts about the whole group, which the release will show, harm its members?",
        "public_facts": "May the facts that the receipt calls public be public?",
    },
    "What no receipt can show": {
        "other_releases": "Which other results were published from the same images, by any means?",
        "choices": "How many trainings were made on these images, and was any setting chosen by looking at results?",
        "public_inputs": "Who checked that public inputs do not contain the sensitive images?",
        "access": "Who can read the folder `private/`, the machine's memory and the images? When are they deleted?",
    },
    "After the release": {
        "intruder_test": "Who attacked the release as a motivated intruder, how, and with which result? When is this "
        "repeated?",
        "recipients": "Which conditions do recipients accept?",
        "monitoring": "Who runs `diffusers-dp advisories` on the release, and how often?",
        "withdrawal": "Who withdraws the release if its guarantee fails, and who is told?",
        "review": "When is this decision reviewed?",
    },
    "Decision": {
        "decision": "Released, released under conditions, or not released: with reasons.",
        "signed": "Name, role, place and date.",
    },
}
NAMES = tuple(name for group in QUESTIONS.values() for name in group)


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
    if name not in NAMES:
        found = nearest(name, NAMES)
        known = f"names are {', '.join(NAMES)}" if found is None else f"the nearest is '{found}'"
        raise UsageError(f"--context {path} answers {name[:80]!r}, which is no question of the form; {known}.")
    if not isinstance(value, str) or len(value) > LONGEST_ANSWER:
        raise UsageError(
            f"--context {path}: the answer to '{name}' must be a text of at most {LONGEST_ANSWER:,} letters."
        )
    return value.strip()
