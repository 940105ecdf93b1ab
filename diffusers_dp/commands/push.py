# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp push`: a release to the Hub, verified first; the same command goes on where it broke off."""

import argparse
from pathlib import Path

from ..release.push import check_hub, describe, files_to_push, push_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=Path, help="Folder of a release.")
    parser.add_argument(
        "--hub_model_id", required=True, help="Name on the Hub: owner/name, or name for one of your own."
    )
    parser.add_argument("--hub_private_repo", action="store_true", help="Make a new repository private.")
    parser.add_argument("--dry_run", action="store_true", help="List what would go, and send nothing.")


def run(args: argparse.Namespace) -> None:
    check_hub(args.hub_model_id, name_alone=True)
    if args.dry_run:
        print(describe(args.release, files_to_push(args.release), args.hub_model_id, args.hub_private_repo))
        return
    print(f"Pushed to {push_release(args.release, args.hub_model_id, private=args.hub_private_repo)}")
