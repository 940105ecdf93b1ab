# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp verify`: `verify.py` on a folder, or on what the Hub has under a name."""

import argparse
import sys

from ..release.hub import fetch_release
from ..verify import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", help="Folder of a release, or Hub id.")
    parser.add_argument("--base", help="Folder of the base, or its Hub id, where the release is adapters of one.")


def run(args: argparse.Namespace) -> None:
    """Exits with 0 (numbers consistent), 2 (nothing to check) or 4 (something does not match)."""
    base = None if args.base is None else fetch_release(args.base, flag="--base", kind="the base")
    sys.exit(report(fetch_release(args.release), base))
