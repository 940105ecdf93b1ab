# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp app`: a page that draws from releases."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from ..methods.command_line import add_flags
from ..methods.flag import flag, validate


#: Module that serves the page; a name, because its room imports this one.
SERVER = "diffusers_dp.app.server"
HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
NAMES_VARIABLE = "DIFFUSERS_DP_RELEASES"  # for a Space: Hub ids, comma-separated


@dataclass(frozen=True)
class Limits:
    """Limits on visitors' requests; each field is the flag of its name."""

    max_images: int = flag(64, "Images in one drawing, at most.")
    max_steps: int = flag(50, "Steps of the solver, at most.")
    max_model_mb: int = flag(1000, "Size of a model, and of the base that it names, asked for before it is fetched.")
    max_seconds: int = flag(900, "Time for loading a model, and for one drawing, at most; then its process is ended.")


@dataclass(frozen=True, kw_only=True)
class PageFlags(Limits):
    """Flags of the page; each field is the flag of its name."""

    _argument_group_name = "page"

    releases: Sequence[str] = ()
    server_name: str = flag(HERE, "Address to listen at; this machine alone, but on a Space.")
    host_names: str = flag(
        "", "Names that visitors use for the page besides its address, comma-separated, as behind a proxy."
    )
    server_port: int = flag(7860, "Port.", at_most=65535)
    allow_unverified: bool = flag(False, "Also open models whose receipt does not match; the page says so in red.")


def run(args: argparse.Namespace) -> None:
    """Raises `UsageError` if the page cannot start."""
    flags = PageFlags(**vars(args))
    validate(flags)
    import_module(SERVER).run(flags)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = f"Folders and Hub ids to choose from; none: those of {NAMES_VARIABLE}, or else runs/*/release."
    parser.add_argument("releases", nargs="*", help=where)
    add_flags(parser, PageFlags)
    server_name = EVERYWHERE if "SPACE_ID" in os.environ else HERE
    parser.set_defaults(server_name=server_name, host_names=os.environ.get("SPACE_HOST", ""))
