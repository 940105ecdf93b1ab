# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a planted fault is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One wrong edit of one file.

    Args:
        name (`str`): What is wrong, in a few words.
        file (`str`): The file, from the root of the repository.
        old, new (`str`): What stands there, exactly once, and what the fault makes of it.
        tests (`tuple[str, ...]`): Tests that must catch it, as pytest names them below `tests/`. They run first.
        old_too, new_too (`str`, *optional*): A second place, where one does not make the fault.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    old_too: str = ""
    new_too: str = ""
