# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp methods`: the registry as a table, then what each status rests on."""

import argparse

from ..methods.registry import METHODS, STATUSES, Method


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(args: argparse.Namespace) -> None:
    rows = [("method", "status", "script", "paper")]
    rows += [(m.title, m.status, _script(m), m.paper) for m in METHODS.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
    for method in METHODS.values():
        print(f"{method.title}: {method.note}")
    print()
    for status, meaning in STATUSES.items():
        print(f"{status}: {meaning}.")


def _script(method: Method) -> str:
    if method.status == "no_guarantee":
        return "none"  # nor will there be one
    return method.script or "to come"
