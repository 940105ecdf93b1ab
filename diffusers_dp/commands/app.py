# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp app`: a page that draws from releases."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from ..errors import UsageError


#: Module that serves the page; a name, because its room imports this one.
SERVER = "diffusers_dp.app.server"
HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
NAMES_VARIABLE = "DIFFUSERS_DP_RELEASES"  # for a Space: Hub ids, comma-separated


@dataclass(frozen=True)
class Limits:
    """
    Limits on visitors' requests.

    Args:
        max_images (`int`): Maximum number of images in one drawing.
        max_steps (`int`): Maximum number of solver steps.
        max_model_mb (`int`): Maximum size of all files of a model together, checked before they are fetched.
        max_seconds (`int`): Maximum time for loading a model, and for one drawing; then its process is ended.
    """

    max_images: int = 64
    max_steps: int = 50
    max_model_mb: int = 1000
    max_seconds: int = 900


@dataclass(frozen=True, kw_only=True)
class PageFlags(Limits):
    """Flags of the page; each field is the flag of its name."""

    releases: Sequence[str]
    server_name: str
    host_names: str
    server_port: int
    allow_unverified: bool


def parse(argv: Sequence[str] | None = None) -> PageFlags:
    """Reads the flags of `python app.py`. Raises `UsageError` for values that are not possible."""
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="A page that draws from released models.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_arguments(parser)
    return _flags(parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    """Raises `UsageError` if the page cannot start."""
    import_module(SERVER).run(_flags(args))


def _flags(args: argparse.Namespace) -> PageFlags:
    for name in ("max_images", "max_steps", "max_model_mb", "max_seconds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}; give an integer of at least 1.")
    return PageFlags(**vars(args))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "releases",
        nargs="*",
        help=f"Folders and Hub ids to choose from; none: those of {NAMES_VARIABLE}, or else runs/*/release.",
    )
    parser.add_argument(
        "--server_name",
        default=EVERYWHERE if "SPACE_ID" in os.environ else HERE,
        help="Address to listen at; this machine alone, but on a Space.",
    )
    parser.add_argument(
        "--host_names",
        default=os.environ.get("SPACE_HOST", ""),
        help="Names that visitors use for the page besides its address, comma-separated, as behind a proxy.",
    )
    parser.add_argument("--server_port", type=int, default=7860, help="Port.")
    parser.add_argument(
        "--allow_unverified",
        action="store_true",
        help="Also open models whose receipt does not match; the page says so in red.",
    )
    parser.add_argument("--max_images", type=int, default=Limits.max_images, help="Images in one drawing, at most.")
    parser.add_argument("--max_steps", type=int, default=Limits.max_steps, help="Steps of the solver, at most.")
    parser.add_argument(
        "--max_model_mb",
        type=int,
        default=Limits.max_model_mb,
        help="Size of a model, and of the base that it names, asked for before it is fetched.",
    )
    parser.add_argument(
        "--max_seconds",
        type=int,
        default=Limits.max_seconds,
        help="For loading a model, and for one drawing, at most.",
    )
