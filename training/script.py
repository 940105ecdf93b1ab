# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What all training scripts do alike: they run what stands in the script itself, so that a changed copy runs too."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.methods.config import chosen_method
from diffusers_dp.runs.launch import run_method


def main_of(*names: str, **code: Callable[..., Any]) -> Callable[..., None]:
    """Returns `main` of a script, which takes a command line, or else that of the program.

    Args:
        names (`str`): Methods that share the script; flags and recipe choose among them.
        code (`Callable`): The script's `train` and, where it has one, `build`, see `Method`.
    """

    def main(argv: list[str] | None = None) -> None:
        given = sys.argv[1:] if argv is None else argv
        method = chosen_method(given, names[0] if len(names) == 1 else None, among=names)
        run_method(replace(method, **code), preflight, given)

    return main
