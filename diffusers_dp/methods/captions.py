# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public captions: of a file, or of templates over common nouns. No torch."""

import os
import re
from importlib.resources import files

from ..errors import UsageError, first_line
from ..files.untrusted_files import read_bounded


CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
MOST_LINES, MOST_BYTES = 10_000, 1_000_000  # of a file
TEMPLATES = (
    "a photo of {}", "a close-up photo of {}", "a photo of {} outdoors", "a photo of {} indoors",
    "a photo of {} on a plain background", "a black and white photo of {}", "a blurry photo of {}",
    "a dark photo of {}", "an old photo of {}", "a drawing of {}", "a painting of {}", "a 3D rendering of {}",
)  # fmt: skip


def noun_captions() -> list[str]:
    """Returns every template with every noun of `nouns.txt`."""
    nouns = files(__package__).joinpath("nouns.txt").read_text(encoding="utf-8").splitlines()
    things = [f"{'an' if noun[0] in 'aeiouXM' else 'a'} {noun}" for noun in nouns]
    return [template.format(thing) for thing in things for template in TEMPLATES]


def read_lines(place: str, flag: str, is_file: bool = True) -> list[str]:
    """
    Reads a text file, one text a line, without empty lines.

    Args:
        place (`str`): The file.
        flag (`str`): Flag that named it, for messages.
        is_file (`bool`): Whether it is one, and not the text itself.

    Raises:
        UsageError: It is not there, no text of UTF-8, too large or empty, or has another placeholder than `{class}`.
    """
    try:
        text = read_bounded(os.path.expanduser(place), MOST_BYTES).decode("utf-8-sig") if is_file else place
        if CONTROL.search(text):
            raise ValueError("it holds control characters")
    except (OSError, ValueError) as error:
        raise UsageError(f"--{flag} is not taken ({first_line(error)}); give UTF-8 text.") from None
    if other := re.search(r"\{(?!class\})\w*\}", text):
        raise UsageError(f"--{flag} has {other[0]}; the one placeholder is {{class}}: correct it.")
    texts = [line.strip() for line in text.splitlines() if line.strip()]
    if not 0 < len(texts) <= MOST_LINES:
        raise UsageError(f"--{flag} {place} holds {len(texts):,} lines; give 1 to {MOST_LINES:,}.")
    return texts
