# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp dossier`: what a data-protection officer reads, fills in and signs before a release leaves the
house."""

import argparse
from pathlib import Path

from ..dossier.evidence import REPORTS
from ..dossier.form import read_context
from ..dossier.write import write_dossier
from ..files.output_files import refuse_in_release
from ..release.hub import fetch_release
from ..runs.folder import AUDIT_FILE


ATTACK = "private/unprotected/audit_release.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", help="Folder of a release, or Hub id.")
    parser.add_argument(
        "--context",
        type=Path,
        help="YAML file with the institution's answers to the form of the dossier. Without it the page has empty "
        "fields.",
    )
    parser.add_argument(
        "--evaluation", type=Path, help="Report of `evaluate` about this release; unset: the one beside the release."
    )
    parser.add_argument(
        "--audit", type=Path, help="Result of `audit release` about this release; unset: the one beside the release."
    )
    parser.add_argument("--output_dir", type=Path, help="Unset: the folder that holds the release.")


def run(args: argparse.Namespace) -> None:
    """Exits with 0, 2 (wrong flags, evidence about another release) or 4 (the release does not match)."""
    answers = read_context(args.context)
    folder = fetch_release(args.release)
    here = Path(args.release).exists()
    home = folder.resolve().parent if here else Path("runs/dossier")
    refuse_in_release(args.output_dir or home)
    reports = [folder / REPORTS[1], *(home / place for place in REPORTS)] if here else []
    written = write_dossier(
        folder, args.output_dir or home, name=f"{home.name}/{folder.name}" if here else args.release, answers=answers,
        evaluation=_given("--evaluation", args.evaluation, reports),
        audit=_given("--audit", args.audit, [home / ATTACK] if here else []),
        tests=home / "private" / AUDIT_FILE if here else None,
    )  # fmt: skip
    print(f"Dossier: {written[0]}, and the same in JSON.")
    if len(written) > 1:
        print(f"For the house alone, because private images were read: {written[1]}.")


def _given(flag: str, path: Path | None, places: list[Path]) -> tuple[str, Path] | None:
    """Returns the file that a flag names, or else the first one that is there."""
    found = path or next((place for place in places if place.is_file()), None)
    return None if found is None else (flag, found)
