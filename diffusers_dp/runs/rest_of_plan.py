# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run that goes on has still to ask, priced from its ledger before the next query. No torch."""

from dataclasses import replace
from pathlib import Path

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..errors import BudgetExceeded
from ..methods.private_training import PrivateTraining
from ..queries.query import Query
from .plan import Plan


LEARNED = "learned"  # folder, in `private/`, of the finished stages of a warm-up and of private trainings
ANSWERS = "answers"  # that of the stored answers
TRAINED = "trained"  # that of the checkpoints of private trainings
NO_STEP = (
    "No step of DP-SGD is left: interruptions before the first checkpoint lost them all, or other releases of "
    "--dataset_id used them up. Start anew in another --output_dir, as another release with a budget of its own."
)


def still_to_come(plan: Plan, ledger: PrivacyLedger, private: Path, but: str = "") -> list[LedgerRow]:
    """What the plan asks yet, in its order, with all steps of trainings that are not over.

    Args:
        private (`Path`): Private folder of the run.
        but (`str`): Name of a query that is left out.
    """
    queries = [query.name for query in plan.queries if query.name != but and not is_over(query, private)]
    asked = {row["stage"] for row in ledger.rows}
    steps = [] if plan.step is None else [plan.step.name]
    after = [] if "evaluation_reserve" in asked else ["evaluation_reserve"]
    return [plan.rows[name] for name in (*queries, *steps, *after) if name in plan.rows]


def is_over(query: Query, private: Path) -> bool:
    """Whether an earlier start has its answer, or finished its training."""
    return (private / (LEARNED if isinstance(query, PrivateTraining) else ANSWERS) / query.name).exists()


def refuse_what_cannot_be_finished(
    plan: Plan, ledger: PrivacyLedger, private: Path, *, step: int | None, max_train_steps: int
) -> None:
    """
    Refuses a run whose remaining queries and steps no longer fit. Nothing is spent and nothing is written.

    After its queries, DP-SGD may end early instead, as long as a step is left, and so may another training before it.
    A lost answer about the finished model stops nothing: the release then carries no charged numbers.

    Args:
        plan (`Plan`): With the noise of the first start.
        ledger (`PrivacyLedger`): Of the run.
        private (`Path`): Private folder of the run.
        step (`int`, *optional*): Steps of DP-SGD that a checkpoint holds; `None` without one.
        max_train_steps (`int`): Planned steps, 0 without DP-SGD.

    Raises:
        BudgetExceeded: One sentence with the figure and the remedy.
    """
    lost = []
    for query in plan.queries:
        if not isinstance(query, PrivateTraining):
            lost += [] if is_over(query, private) else [plan.rows[query.name]]
        elif not is_over(query, private) and not any((private / TRAINED / query.name).glob("checkpoint-*")):
            lost.append(replace(plan.rows[query.name], steps=1))
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
    anew = "start again in another --output_dir, as another release with a budget of its own"
    if steps:
        number = ledger.affordable_steps(steps[0], steps[0].steps, beside=queries)
        if number:
            return f"Give --max_train_steps {number}, or {anew}."
    return f"{anew[0].upper()}{anew[1:]}."
