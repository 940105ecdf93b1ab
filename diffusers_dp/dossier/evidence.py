# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Results of `evaluate` and `audit` about one release; those of another release are refused."""

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.untrusted_values import bounded_number, bounded_text, read_json_file


MOST_BYTES = 20_000_000
#: Where `diffusers-dp evaluate` puts its report, from the folder of a run or of a release.
REPORTS = ("private/unprotected/evaluation/report.json", "evaluation/report.json")
REMEDY = "give the file that the command wrote"
#: What the annex shows of an attack on a release, and its words.
ATTACKS = {
    "auc": "probability that a used image looks more used than an unused one",
    "true_positive_rate_at_1_percent": "true-positive rate at 1 % false positives",
    "samples_nearer_to_a_member": "share of drawn images nearer to a used image",
}
WRONG = (LookupError, TypeError, ValueError, AttributeError)


def read_evaluation(path: Path, flag: str, receipt_sha256: str) -> tuple[list[dict[str, Any]], bool]:
    """Reads a report of `evaluate` on the release with this receipt.

    Args:
        path (`Path`): `report.json`.
        flag (`str`): Flag that names such a file, for messages.
        receipt_sha256 (`str`): Digest of the receipt, see `verify.settled_digest`.

    Returns:
        A table for each classifier: classes from the worst one, with the difference to the best one. And whether
        private images were read; a report that does not say so counts as private.

    Raises:
        UsageError: The file cannot be read, is about another release or none, or lacks what `evaluate` writes.
    """
    found = _about(path, flag, receipt_sha256)
    try:
        tables = [_by_class(bounded_text(name), rows["per_class"]) for name, rows in found["confusion"].items()]
    except WRONG:
        raise UsageError(f"{flag} {path} lacks a table of classes: evaluate the release again.") from None
    return [table for table in tables if table["rows"]], found.get("read private data") != "no"


def _by_class(classifier: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    shown: list[dict[str, Any]] = [
        {"class": bounded_text(row["class"]), "images": int(bounded_number(row["real_test_images"], 0, 2**53)),
         "accuracy": bounded_number(row["accuracy"], 0, 1)}
        for row in rows
        if row["accuracy"] is not None
    ]  # fmt: skip
    shown.sort(key=lambda row: row["accuracy"])
    gap = shown[-1]["accuracy"] - shown[0]["accuracy"] if shown else 0.0
    return {"classifier": classifier, "rows": shown, "largest_difference": gap}


def read_audit(path: Path, flag: str, receipt_sha256: str) -> dict[str, Any]:
    """Reads the result of `audit release` on the release with this receipt. See `read_evaluation` for arguments.

    Raises:
        UsageError: The file cannot be read, is about another release or none, or lacks what the annex shows.
    """
    found = _about(path, flag, receipt_sha256)
    try:
        bounded_text(found["conclusion"]), bounded_number(found["confidence"], 0, 1)
        for name in ATTACKS:
            for part in ("value", "low", "high"):
                bounded_number(found[name][part], 0, 1)
    except WRONG:
        raise UsageError(f"{flag} {path} lacks results of `audit release`: audit the release again.") from None
    return found


def read_tests(path: Path | None) -> dict[str, Any] | None:
    """Reads the bounds on epsilon of `audit mechanism` or `audit run`, which read no image, with the flags of the run.

    Args:
        path (`Path`, *optional*): File in the folder of the run; it may be missing.

    Raises:
        UsageError: The file cannot be read, or lacks what the command writes.
    """
    if path is None or not path.exists():
        return None
    found = read_json_file(path, str(path), REMEDY, most=MOST_BYTES)
    try:
        return {
            "tier": bounded_text(found["tier"]),
            "verdict": bounded_text(found["verdict"]),
            "confidence": bounded_number(found["confidence"]["formal_bound"], 0, 1),
            "mechanisms": [
                {"mechanism": bounded_text(name), "upper_bound": _bound(each["claimed_epsilon"]),
                 "lower_bound": _bound(each["honest"]["formal_bound"])}
                for name, each in found["mechanisms"].items()
            ],
        }  # fmt: skip
    except WRONG:
        raise UsageError(f"{path} lacks results of an audit: audit the run again, or remove the file.") from None


def _bound(value: Any) -> float | None:
    return None if value is None else bounded_number(value, 0, 1e9)


def _about(path: Path, flag: str, receipt_sha256: str) -> dict[str, Any]:
    found = read_json_file(path, f"{flag} {path}", REMEDY, most=MOST_BYTES)
    about = (found.get("release") or found) if isinstance(found, dict) else None
    measured = about.get("receipt_sha256") if isinstance(about, dict) else None
    if not isinstance(found, dict) or measured != receipt_sha256:
        what = f"is about receipt {measured[:16]}..." if isinstance(measured, str) else "names no release"
        raise UsageError(
            f"{flag} {path} {what}, and this release has {receipt_sha256[:16]}...: measure this one, or remove the "
            "file."
        )
    return found
