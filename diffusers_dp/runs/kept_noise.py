# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The noise of a run, chosen once at its first start. No torch.

A noise multiplier that is chosen again after an answer was seen would be adaptive, which PLD does not cover. So a run
that goes on keeps those of its first start, also of what it has not asked yet, and asks nothing that was not planned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..errors import IntegrityError, UsageError
from ..queries.query import Query


#: By the name of a row: what of it is never chosen again.
Noise = Mapping[str, Mapping[str, Any]]


def noise_of(rows: Mapping[str, LedgerRow], queries: Sequence[Query], exact: bool) -> dict[str, dict[str, Any]]:
    """What `private/run.json` keeps of a plan, as JSON values."""
    kept = {}
    for query in queries:
        kept[query.name] = {**_asked(query), "noise_multiplier": rows[query.name].noise_multiplier}
    for name in {DP_SGD, TEACHERS} & set(rows):
        row = rows[name]
        kept[name] = {**row.entry, "steps_reserved": row.steps}
    return {name: {**found, "exact": exact} for name, found in kept.items()}


def kept_row(kept: Noise, query: Query, of_door: Mapping[str, Any]) -> LedgerRow:
    """
    The row of a query with the noise of the first start.

    Raises:
        UsageError: The first start did not plan the query, or planned it by other flags.
        IntegrityError: The values are damaged.
    """
    found = kept.get(query.name)
    if found is None:
        raise UsageError(
            f"This run began without the query '{query.name}': resume with the flags of the first start, or start "
            "another --output_dir."
        )
    for key, now in _asked(query).items():
        if found.get(key) != now:
            raise UsageError(
                f"The query '{query.name}' has {key.replace('_', ' ')} {now}, and this run began with "
                f"{found.get(key)}: resume with the flags of the first start, or start another --output_dir."
            )
    return query.row(_number(found, query.name), **of_door)


def refuse_the_other_kind(kept: Noise, has_guarantee: bool, exact: bool) -> None:
    """Raises `UsageError` where a run with a guarantee would go on without one, or the other way round, or with
    another kind of noise."""
    if any(found.get("exact") != exact for found in kept.values()):
        now, then = ("exact", "float") if exact else ("float", "exact")
        raise UsageError(
            f"--noise is {now}, and this run began with {then}: give --noise {then}, or start another --output_dir."
        )
    began = all(_number(found, name) > 0 for name, found in kept.items())
    if kept and began != has_guarantee:
        then = "with noise" if began else "without noise (inf)"
        raise UsageError(
            f"--target_epsilon is of the other kind, and this run began {then}: resume with the flags of the first "
            "start, or start another --output_dir."
        )


def kept_step(kept: Noise, name: str) -> LedgerRow:
    """
    DP-SGD, or rounds of teachers, as the first start planned it.

    Args:
        name (`str`): `DP_SGD` or `TEACHERS`.

    Raises:
        IntegrityError: The values are missing or damaged.
    """
    try:
        return LedgerRow.read(kept[name])
    except (LookupError, TypeError, ValueError, UsageError):
        raise IntegrityError(
            f"run.json is damaged: it has no noise multiplier of '{name}'; restore the file."
        ) from None


def _asked(query: Query) -> dict[str, Any]:
    return {
        "flag": query.noise_multiplier, "budget_share": query.budget_share, "sample_rate": query.sample_rate,
        "repeats": query.repeats,
    }  # fmt: skip


def _number(found: Mapping[str, Any], name: str) -> float:
    sigma = found.get("noise_multiplier")
    if not isinstance(sigma, float | int) or isinstance(sigma, bool):
        raise IntegrityError(f"run.json is damaged: it has no noise multiplier of '{name}'; restore the file.")
    return sigma
