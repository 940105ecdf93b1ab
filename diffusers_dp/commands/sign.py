# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sign`: an institution vouches for a release, with an SSH key that it has already."""

import argparse
from pathlib import Path

from ..release.signing import sign_release
from ..words import SIGNATURE_NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=Path, help="Folder of a release.")
    parser.add_argument(
        "--key",
        required=True,
        help="Private SSH key, such as ~/.ssh/id_ed25519, or the public half of one that ssh-agent holds.",
    )


def run(args: argparse.Namespace) -> None:
    sign_release(args.release, args.key)
    print(
        f"Signed: {args.release / SIGNATURE_NAME}. Readers check it with "
        "`diffusers-dp verify RELEASE --signer KEY.pub`, and their own copy of that key."
    )
