# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A as a whole: every question of a run, on stand-in records."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tqdm.auto import tqdm

from ..accounting.ledger_row import TEACHERS
from ..data.images import PublicFacts
from ..runs.plan import Plan
from .additivity import additivity_checks, model_tolerance
from .cells import CELLS, cell_checks, cell_of
from .checks import Check
from .mechanism import Audited, AuditedModel, canary_runs, size_of_audit, stand_in
from .one_shot import STAGES, PlannedQuery, evaluation_query, query_runs
from .own_gradients import own_gradient_checks
from .probes import parameter_noise_checks, sensitivity_checks
from .report import Audit
from .teachers import own_teacher_checks, teacher_runs


DRAWS, QUICK_DRAWS = 500, 60


def audit_mechanism(
    facts: PublicFacts,
    plan: Plan,
    model: AuditedModel | None = None,
    *,
    bf16: bool = False,
    quick: bool = False,
) -> Audit:
    """Every question of a run, put to stand-in records through the real door; no image is read.

    Args:
        facts, plan: Of the run.
        model (`AuditedModel`, *optional*): The run's own, for the probes of `probes.py`; without it a stand-in's only.
        bf16 (`bool`): Whether its model computes in mixed precision.
        quick (`bool`): Fewer steps and draws, for the pre-flight.

    Returns:
        `Audit`: With a verdict.
    """
    start = time.perf_counter()
    step = Audited.of(plan) if "dp_sgd" in plan.rows else None
    probes: list[Callable[[], list[Check]]] = []
    num_records, steps = 0, list[int]()
    if step is not None:
        num_records, steps = size_of_audit(step, quick)
        probes = _probes(step, model, bf16=bf16, quick=quick)
    queries = _queries(facts, plan)
    rounds = plan.rows.get(TEACHERS)
    if rounds is not None and model is not None:
        probes.append(lambda: own_teacher_checks(rounds, model, plan.ledger.target_delta))
    checks: list[Check] = []
    total = sum(steps) + STAGES * (len(queries) + (rounds is not None)) + len(probes)
    with (
        _one_thread(),
        tqdm(total=total, desc="Pre-flight" if quick else "Mechanism", unit="step", leave=False) as bar,
    ):
        outcomes, delta = {}, plan.ledger.target_delta
        asked: dict[str, Any] = {
            "delta": delta, "draws": QUICK_DRAWS if quick else DRAWS, "accountant": "rdp" if quick else "pld",
            "progress": bar.update,
        }  # fmt: skip
        if step is not None:
            outcomes["dp_sgd"] = canary_runs(step, quick=quick, progress=bar.update)
        if rounds is not None:
            outcomes[TEACHERS] = teacher_runs(rounds, **asked)
        for query in queries:
            outcomes[query.row.name] = query_runs(
                query, facts.image_shape, facts.class_names, units=plan.unit == "unit", exact=plan.exact, **asked
            )
        for probe in probes:
            checks += probe()
            bar.update()
    settings: dict[str, Any] = {"delta": delta}
    if step is not None:
        records = {"stand_in_records": num_records, "num_canaries": num_records // 2, "steps": steps}
        settings = step.facts | settings | records
    return Audit("mechanism", settings, outcomes, checks, time.perf_counter() - start)


def _probes(step: Audited, model: AuditedModel | None, *, bf16: bool, quick: bool) -> list[Callable[[], list[Check]]]:
    """Of DP-SGD alone."""
    own, probes = model or stand_in(), list[Callable[[], list[Check]]]()
    if model is not None:  # first: it says by name what the others would stumble over
        probes.append(lambda: own_gradient_checks(step, own, bf16=bf16))
    probes += [
        lambda: sensitivity_checks(step, stand_in(), tight=True, thorough=not quick),
        lambda: additivity_checks(step, stand_in(), "stand-in"),
        lambda: parameter_noise_checks(step, own),
        lambda: cell_checks(step, own, [cell_of(step)] if quick else CELLS),
    ]
    if model is not None:
        probes += [
            lambda: additivity_checks(step, own, "the model", model_tolerance(bf16)),
            lambda: sensitivity_checks(step, own, tight=False, thorough=False),
        ]
    return probes


def _queries(facts: PublicFacts, plan: Plan) -> list[PlannedQuery]:
    queries = [PlannedQuery.of(query, plan.rows[query.name]) for query in plan.queries]
    if "evaluation_reserve" in plan.rows:
        queries.append(evaluation_query(plan.rows["evaluation_reserve"], facts.image_shape, facts.class_names))
    return queries


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Records are few and small here. Several threads gain nothing, and wait for each other: on a busy machine of two
    cores they took eight times the CPU seconds of one."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)
