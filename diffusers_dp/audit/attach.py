# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether an audit is one of the run that made a release: its planned settings are those of the receipt. No torch."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UsageError
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
    events = [event for event in receipt.get("events", []) if event.get("stage") == "dp_sgd"]
    if "dp_sgd" not in plan.rows:
        _check_same_queries(folder, receipt, title, plan)
        return
    if not events:
        raise UsageError(
            f"--attach {folder}: the release was made without DP-SGD, which is what is audited; leave --attach out."
        )
    for event in events:
        query = event.get("query") or {}
        made = {
            "method": (receipt.get("method") or {}).get("name"),
            "unit of privacy": receipt.get("unit_of_privacy"),
            f"number of {plan.unit}s": event.get("dataset_size"),
            "sample rate": event.get("sampling_probability"),
            "number of groups": event.get("bands", 1),
            "clip norm": query.get("clip_norm"),
            "normaliser": query.get("normaliser"),
            "noise multiplicity": query.get("noise_multiplicity"),
            "images per unit": query.get("max_images_per_unit"),
        }
        row, asked = plan.rows["dp_sgd"], plan.rows["dp_sgd"].query
        audited = [
            title, plan.ledger.header["unit_of_privacy"], plan.ledger.num_images,
            row.sampling_probability, row.mechanism.num_groups, asked["clip_norm"], asked["normaliser"],
            asked["noise_multiplicity"], asked.get("max_images_per_unit"),
        ]  # fmt: skip
        if tier == "mechanism":
            made["noise multiplier"] = event.get("noise_multiplier")
            audited.append(row.noise_multiplier)
        for (name, there), here in zip(made.items(), audited, strict=True):
            if not _same(there, here):
                raise UsageError(
                    f"--attach {folder}: this release was made with {name} {there}, and these flags mean {here}, so "
                    "that the audit would be of another run; repeat the flags of the run that made it."
                )


def _check_same_queries(folder: Path, receipt: dict[str, Any], title: str, plan: Plan) -> None:
    """Of a method without DP-SGD: its title and unit, and names, noise and number of images of all questions."""
    keys = ("stage", "noise_multiplier", "sampling_probability", "steps_reserved", "dataset_size")
    made = [[(receipt.get("method") or {}).get("name"), receipt.get("unit_of_privacy")]]
    made += _added_up([event.get(key) for key in keys] for event in receipt.get("events", []))
    audited = [[title, plan.ledger.header["unit_of_privacy"]]]
    audited += _added_up([event[key] for key in keys] for event in plan.ledger.rows)
    same = len(made) == len(audited) and all(
        _same(there, here)
        for event, row in zip(made, audited, strict=True)
        for there, here in zip(event, row, strict=True)
    )
    if not same:
        raise UsageError(
            f"--attach {folder}: this release was made by other questions than these flags mean, so that the audit "
            "would be of another run; repeat the flags of the run that made it."
        )


def _added_up(asked: Iterable[list[Any]]) -> list[list[Any]]:
    """Questions in the order of their names; rounds of teachers that were reserved one after the other as one."""
    found: dict[tuple[Any, ...], Any] = {}
    for stage, sigma, rate, steps, size in asked:
        found[stage, sigma, rate, size] = found.get((stage, sigma, rate, size), 0) + steps
    return sorted([stage, sigma, rate, steps, size] for (stage, sigma, rate, size), steps in found.items())


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, (int, float)) and isinstance(here, (int, float)):
        return math.isclose(there, here, rel_tol=1e-6)
    return bool(there == here)
