# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp advisories`: faults of earlier versions that may touch a release, found after it was published."""

import argparse
import sys

from .. import __version__
from ..errors import IntegrityError
from ..release.hub import fetch_release, verify_here
from ..verify import KNOWN_FAULTS, advisories


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", help="Folder of a release, or Hub id.")


def run(args: argparse.Namespace) -> None:
    """Exits with 0 (no known fault), 2 (no release) or 4 (a fault may touch it, or it does not match)."""
    folder = fetch_release(args.release)
    receipt, problems = verify_here(folder)
    if problems:
        raise IntegrityError(
            f"{folder} does not match its receipt, so no fault can be told from it: {' '.join(problems)}"
        )
    found = list(advisories(receipt))
    known = f"diffusers_dp {__version__} knows {len(KNOWN_FAULTS)} faults of receipts"
    if not found:
        print(f"No known fault touches this release: {known}. Ask again with each new version.")
        return
    for sentence, remedy in found:
        print(f"KNOWN FAULT: {sentence}\n  What to do: {remedy}")
    print(f"{known}. If epsilon may not hold, withdraw the release: docs/dossier.md says how.")
    sys.exit(4)
