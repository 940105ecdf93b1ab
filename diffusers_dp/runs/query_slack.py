# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--query_slack`: budget for queries whose answer an interruption loses after their row is on disk. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..errors import UsageError


AGAIN = "again_"  # first word of such a row in a plan


def dearest(number: int, rows: Iterable[LedgerRow], ledger: PrivacyLedger) -> list[LedgerRow]:
    """The queries that cost most by themselves, once more.

    Args:
        number (`int`): `--query_slack`.
        rows (iterable of `LedgerRow`): All queries of the plan.
        ledger (`PrivacyLedger`): Its target and its units.

    Raises:
        UsageError: There are fewer queries.
    """
    rows = list(rows)
    if number > len(rows):
        raise UsageError(
            f"--query_slack {number} is more than the {len(rows)} queries of the plan: give at most that."
        )
    empty = PrivacyLedger(
        None, target_epsilon=ledger.target_epsilon, target_delta=ledger.target_delta, num_images=ledger.num_images
    )
    by_cost = sorted(rows, key=lambda row: empty.epsilon("rdp", extra=[row]), reverse=True)
    return [replace(row, name=AGAIN + row.name) for row in by_cost[:number]]


def slack_in_words(ledger: PrivacyLedger, rows: Mapping[str, LedgerRow]) -> list[str]:
    """Which queries a plan can repeat once, at their planned noise: each that fits in the place of the slack."""
    number = sum(name.startswith(AGAIN) for name in rows)
    if not number:
        return []
    planned = PrivacyLedger(
        None, target_epsilon=ledger.target_epsilon, target_delta=ledger.target_delta, num_images=ledger.num_images,
        accountant=ledger.accountant,
    )  # fmt: skip
    kept = [row for name, row in rows.items() if not name.startswith(AGAIN)]
    names = [
        row.name
        for row in kept
        if row.name not in (DP_SGD, TEACHERS, "restart_slack") and not planned.over_budget([*kept, row])
    ]
    return [f"query_slack: {number} of these can be asked once more, at the same noise: {', '.join(names)}"]


def refuse_slack(number: int, slack: Sequence[LedgerRow], ledger: PrivacyLedger, rows: Iterable[LedgerRow]) -> None:
    """Raises `UsageError` where the queries fit, and leave nothing with their slack."""
    rows = list(rows)
    if ledger.epsilon(extra=rows) < ledger.target_epsilon <= ledger.epsilon(extra=[*rows, *slack]):
        raise UsageError(
            f"--query_slack {number} keeps budget to ask {', '.join(row.name[len(AGAIN) :] for row in slack)} once "
            f"more, which leaves nothing of --target_epsilon {ledger.target_epsilon:g}: lower it, or lower the budget "
            "shares or raise the noise multipliers of the queries."
        )
