# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp methods`: the registry as a table, then what each status rests on; or one method by name."""

import argparse
from difflib import get_close_matches

from ..errors import UsageError
from ..methods.method import PROVEN, STATUSES, Method
from ..methods.registry import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", help="One method by name or title, such as feta_pro or GS-WGAN; without, all of them."
    )


def run(args: argparse.Namespace) -> None:
    """Raises `UsageError`: there is no method of this name."""
    if args.name is not None:
        _print_one(args.name)
        return
    rows = [("name", "method", "status", "script", "paper")]
    rows += [(m.name, m.title, m.status, _script(m), m.paper) for m in METHODS.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
    for method in METHODS.values():
        print(f"{method.title}: {method.note}")
    print()
    for status, meaning in STATUSES.items():
        print(f"{status}: {meaning}.")


def _print_one(name: str) -> None:
    known = {letters(each): method for method in METHODS.values() for each in (method.title, method.name)}
    if letters(name) not in known:
        near = known[get_close_matches(letters(name), known, n=1, cutoff=0.0)[0]].name
        raise UsageError(f"There is no method '{name}'; the nearest is '{near}'. `diffusers-dp methods` lists all.")
    method = known[letters(name)]
    print(f"{method.title} ({method.name})", f"paper: {method.paper}", sep="\n")
    print(f"status: {method.status}: {STATUSES[method.status]}.", f"script: {_script(method)}", sep="\n")
    print("", *filter(None, (method.note, method.figures, method.computed)), sep="\n")


def letters(name: str) -> str:
    """Returns letters and digits alone: papers write GS-WGAN, and commands gs_wgan."""
    return "".join(filter(str.isalnum, name.lower()))


def _script(method: Method) -> str:
    return method.script or ("to come" if method.status in PROVEN else "none")
