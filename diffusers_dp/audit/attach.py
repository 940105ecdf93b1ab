# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether an audit is one of the run that made a release: its planned settings are those of the receipt. No torch."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
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
    released = [(receipt.get("method") or {}).get("name"), receipt.get("unit_of_privacy")]
    planned = [title, plan.ledger.header["unit_of_privacy"]]
    events, step = receipt.get("events", []), plan.rows.get(DP_SGD)
    if step is None:
        there = [{"queries (stage, noise, sample rate, number of images, steps)": _added_up(events)}]
        here = {name: _added_up(plan.ledger.rows) for name in there[0]}
    else:
        there = [_step(event, tier, plan.unit) for event in events if event.get("stage") == DP_SGD]
        here = _step({**step.entry, "dataset_size": plan.ledger.num_images}, tier, plan.unit)
    if not there:
        raise UsageError(
            f"--attach {folder}: the release was made without DP-SGD, which is what is audited; leave --attach out."
        )
    names = ("method", "unit of privacy")
    for facts in there:
        for name, made, meant in (
            *zip(names, released, planned, strict=True),
            *((n, facts[n], here[n]) for n in facts),
        ):
            if not _same(made, meant):
                raise UsageError(
                    f"--attach {folder}: this release was made with {name} {made}, and these flags mean {meant}, so "
                    "that the audit would be of another run; repeat the flags of the run that made it."
                )


def _step(event: Mapping[str, Any], tier: str, unit: str) -> dict[str, Any]:
    """What is compared of steps of DP-SGD."""
    query = event.get("query") or {}
    noise = {"noise multiplier": event.get("noise_multiplier")} if tier == "mechanism" else {}
    return {
        f"number of {unit}s": event.get("dataset_size"),
        "sample rate": event.get("sampling_probability"),
        "number of groups": mechanism_of(event).num_groups,
        "clip norm": query.get("clip_norm"),
        "normaliser": query.get("normaliser"),
        "noise multiplicity": query.get("noise_multiplicity"),
        "images per unit": query.get("max_images_per_unit"),
        **noise,
    }


def _added_up(events: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """All queries, in the order of their names; rounds that were reserved one after the other as one."""
    found: Counter[tuple[Any, ...]] = Counter()
    for event in events:
        keys = ("stage", "noise_multiplier", "sampling_probability", "dataset_size")
        found[tuple(event.get(key) for key in keys)] += event.get("steps_reserved", 0)
    return sorted([*query, steps] for query, steps in found.items())


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, list) and isinstance(here, list):
        return len(there) == len(here) and all(map(_same, there, here))
    if isinstance(there, (int, float)) and isinstance(here, (int, float)):
        return math.isclose(there, here, rel_tol=1e-6)
    return bool(there == here)
