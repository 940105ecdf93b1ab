# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp verify`: `verify.py` on a folder, or on what the Hub has under a name; and who signed it."""

import argparse
import sys
from functools import partial

from ..release.hub import fetch_release
from ..release.signing import check_signature, read_signer
from ..verify import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", help="Folder of a release, or Hub id.")
    parser.add_argument(
        "--signer",
        metavar="KEY",
        help="Your own copy of the public key that must have signed the release, such as clinic.pub. "
        "The signature says who vouches for the release, never that noise was added.",
    )
    parser.add_argument(
        "--identity",
        help="Who must have signed, if --signer is a file of allowed signers (see `man ssh-keygen`).",
    )
    parser.add_argument("--base", help="Folder of the base, or its Hub id, where the release is adapters of one.")


def run(args: argparse.Namespace) -> None:
    """Exits with 0 (numbers consistent), 2 (nothing to check) or 4 (something does not match)."""
    base = None if args.base is None else fetch_release(args.base, flag="--base", kind="the base")
    signer = read_signer(args.signer, args.identity)
    folder = fetch_release(args.release)
    check = None if signer is None else partial(check_signature, folder, signer=signer)
    sys.exit(report(folder, check, base))
