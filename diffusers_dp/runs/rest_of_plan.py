# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run that goes on has still to ask, priced from its ledger before the next query. No torch."""

from dataclasses import replace
from pathlib import Path

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..errors import BudgetExceeded
from .plan import Plan


NO_STEP = (
    "No step of DP-SGD is left: interruptions before the first checkpoint lost them all, or other releases of "
    "--dataset_id used them up. Start anew in another --output_dir, as another release with a budget of its own."
)


def refuse_what_cannot_be_finished(
    plan: Plan, ledger: PrivacyLedger, answers: Path, *, step: int | None, max_train_steps: int
) -> None:
    """
    Refuses a run whose remaining queries and steps no longer fit. Nothing is spent and nothing is written.

    After its queries, DP-SGD may end early instead, as long as a step is left. A lost answer about the finished
    model stops nothing: the release then carries no charged numbers.

    Args:
        plan (`Plan`): With the noise of the first start.
        ledger (`PrivacyLedger`): Of the run.
        answers (`Path`): Folder of the stored answers.
        step (`int`, *optional*): Steps of DP-SGD that a checkpoint holds; `None` without one.
        max_train_steps (`int`): Planned steps, 0 without DP-SGD.

    Raises:
        BudgetExceeded: One sentence with the figure and the remedy.
    """
    lost = [plan.rows[query.name] for query in plan.queries if not (answers / query.name).exists()]
    before = lost if step is None else []  # all that comes before DP-SGD is over
    asked = {row["stage"] for row in ledger.rows}
    later = plan.rows.get("evaluation_reserve")
    after = [] if later is None or later.name in asked else [later]
    remaining = max_train_steps - (step or 0)
    steps = [replace(plan.step, steps=remaining)] if plan.step is not None and remaining > 0 else []
    needed = [*before, *after, *(steps if before else [])]
    if needed and (problem := ledger.over_budget(needed)):
        again = [row.name for row in before if row.name in asked]
        raise BudgetExceeded(
            f"What is left of the plan ({', '.join(map(_in_words, needed))}) {problem}, because "
            f"{_reason(again)}: nothing was asked. {_remedy(ledger, [*before, *after], steps if before else [])}"
        )
    if step is None and steps and not before and not ledger.affordable_steps(steps[0], 1):
        raise BudgetExceeded(NO_STEP)


def _in_words(row: LedgerRow) -> str:
    return row.name if row.steps == 1 else f"{row.steps} of {row.name}"


def _reason(again: list[str]) -> str:
    if not again:
        return "other steps or releases have used up what was planned for them"
    return f"an interruption lost the answer of {', '.join(again)}, which stays spent"


def _remedy(ledger: PrivacyLedger, queries: list[LedgerRow], steps: list[LedgerRow]) -> str:
    anew = "start again in another --output_dir, and give --query_slack 1 to keep budget for such a loss"
    if steps:
        number = ledger.affordable_steps(steps[0], steps[0].steps, beside=queries)
        if number:
            return f"Give --max_train_steps {number}, or {anew}."
    return f"{anew[0].upper()}{anew[1:]}."
