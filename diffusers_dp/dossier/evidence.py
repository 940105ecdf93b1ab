# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Results of `evaluate` and `audit release` about one release; those of another release are refused."""

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.strange_files import read_bounded


MOST_BYTES = 20_000_000
#: Where `diffusers-dp evaluate` puts its report, from the folder of a run or of a release.
REPORTS = ("private/unprotected/evaluation/report.json", "evaluation/report.json")


def read_result(path: Path, flag: str, receipt_sha256: str) -> dict[str, Any]:
    """Reads a result that was measured on the release with this receipt.

    Args:
        path (`Path`): `report.json` of `evaluate`, or `audit_release.json`.
        flag (`str`): Flag that names such a file, for messages.
        receipt_sha256 (`str`): Digest of the receipt, see `verify.receipt_digest`.

    Raises:
        UsageError: The file cannot be read, or is about another release or none.
    """
    try:
        found = json.loads(read_bounded(path, MOST_BYTES))
        measured = (found.get("release") or found).get("receipt_sha256")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise UsageError(f"{flag} {path} cannot be read; give the file that the command wrote.") from None
    if measured != receipt_sha256:
        what = "names no release" if measured is None else f"is about receipt {str(measured)[:16]}..."
        raise UsageError(
            f"{flag} {path} {what}, and this release has {receipt_sha256[:16]}...: measure this one, or remove the "
            "file."
        )
    return dict(found)


def per_class(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a table for each classifier: classes from the worst one, with the difference to the best one.

    Raises:
        UsageError: The report does not have the fields that `evaluate` writes.
    """
    tables = []
    try:
        for name, found in evaluation["confusion"].items():
            rows = [
                {"class": str(row["class"]), "images": int(row["real_test_images"]), "accuracy": row["accuracy"] + 0.0}
                for row in found["per_class"]
                if row["accuracy"] is not None
            ]
            rows.sort(key=lambda row: row["accuracy"])
            if rows:
                gap = rows[-1]["accuracy"] - rows[0]["accuracy"]
                tables.append({"classifier": str(name), "rows": rows, "largest_difference": gap})
    except (LookupError, TypeError, ValueError, AttributeError):
        raise UsageError("The report of `evaluate` lacks its table of classes: evaluate the release again.") from None
    return tables


def reads_private_data(evidence: dict[str, Any]) -> bool:
    """Whether a result was measured on private images; one that does not say so counts as private."""
    return evidence.get("read private data") != "no"
