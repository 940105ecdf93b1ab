# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether an audit is one of the run that made a release: its planned settings are those of the receipt. No torch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..accounting.ledger_row import DP_SGD
from ..errors import UsageError
from ..mechanisms import mechanism_of
from ..runs.plan import Plan


def check_same_run(folder: Path, receipt: dict[str, Any], tier: str, title: str, plan: Plan) -> None:
    """Compares what would be audited with what the release was made with, before the audit runs.

    Args:
        folder (`Path`): The release, for the message.
        receipt (`dict`): Its own.
        tier (`str`): `mechanism` audits the run's own noise; `run` calibrates another.
        title (`str`): Title of the method that the audit's flags name.
        plan (`Plan`): Plan of these flags.

    Raises:
        UsageError: They differ; names the first difference.
    """
    made, meant = (
        [entry for entry in entries if DP_SGD not in plan.rows or entry["stage"] == DP_SGD]
        for entries in (receipt.get("events", []), plan.ledger.rows)
    )
    if not made:
        raise UsageError(
            f"--attach {folder}: the release was made without DP-SGD, which is what is audited; leave --attach out."
        )
    planned = {entry["stage"]: _facts(entry, tier, plan.unit) for entry in meant}
    compared = [
        ("method", (receipt.get("method") or {}).get("name"), title),
        ("unit of privacy", receipt.get("unit_of_privacy"), plan.ledger.header["unit_of_privacy"]),
        ("queries", sorted({event["stage"] for event in made}), sorted(planned)),
    ]
    for event in made:
        there = planned.get(event["stage"], {})
        compared += [(name, value, there.get(name)) for name, value in _facts(event, tier, plan.unit).items()]
    for name, one, other in compared:
        near = (
            isinstance(one, (int, float))
            and isinstance(other, (int, float))
            and math.isclose(one, other, rel_tol=1e-6)
        )
        if not near and one != other:
            raise UsageError(
                f"--attach {folder}: this release was made with {name} {one}, and these flags mean {other}, so "
                "that the audit would be of another run; repeat the flags of the run that made it."
            )


def _facts(entry: Mapping[str, Any], tier: str, unit: str) -> dict[str, Any]:
    """What is compared of a query; how often it is asked decides its noise."""
    query = entry.get("query") or {}
    noise = {"noise multiplier": entry["noise_multiplier"]} if tier == "mechanism" else {}
    return {
        f"number of {unit}s": entry["dataset_size"],
        "sample rate": entry["sampling_probability"],
        "number of groups": mechanism_of(entry).num_groups,
        "clip norm": query.get("clip_norm"),
        "normaliser": query.get("normaliser"),
        "noise multiplicity": query.get("noise_multiplicity"),
        "images per unit": query.get("max_images_per_unit"),
        **noise,
    }
