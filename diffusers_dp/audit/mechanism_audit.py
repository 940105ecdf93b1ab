# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A as a whole: every query of a run, on stand-in records."""

import time
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm

from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..data.images import PublicFacts
from ..distributed.processes import one_thread
from ..runs.plan import Plan
from .canary_runs import size_of_audit, stand_in_runs
from .checks import Check, Outcome
from .own_gradients import own_gradient_checks
from .probes import additivity_checks, model_tolerance, noise_checks_at_the_door, sensitivity_checks
from .report import Audit, settings_of
from .stand_ins import AuditedModel, stand_in
from .targets import AuditTarget, QueryTarget, evaluation_target, target_runs
from .teacher_targets import TeachersTarget, own_teacher_checks


DRAWS, QUICK_DRAWS = 500, 60


def audit_mechanism(
    facts: PublicFacts,
    plan: Plan,
    model: AuditedModel | None = None,
    *,
    bf16: bool = False,
    quick: bool = False,
) -> Audit:
    """Every query of a run, put to stand-in records through the real door; no image is read.

    Args:
        facts, plan: Of the run.
        model (`AuditedModel`, *optional*): The run's own, for the probes; without it a stand-in's only.
        bf16 (`bool`): Whether its model computes in mixed precision.
        quick (`bool`): Fewer steps and draws, for the pre-flight.

    Returns:
        `Audit`: With a verdict.
    """
    start, delta, row = time.perf_counter(), plan.ledger.target_delta, plan.rows.get(DP_SGD)
    settings: dict[str, Any] = {"delta": delta}
    outcomes, checks = dict[str, list[Outcome]](), list[Check]()
    asked: dict[str, Any] = {
        "delta": delta, "draws": QUICK_DRAWS if quick else DRAWS, "accountant": "rdp" if quick else "pld",
    }  # fmt: skip
    targets, rounds = _queries(facts, plan), plan.rows.get(TEACHERS)
    probes = [] if row is None else probes_of_steps(row, model, bf16=bf16, thorough=not quick)
    if rounds is not None and model is not None:
        probes.append(lambda: own_teacher_checks(rounds, model))
    number = (row is not None) + len(targets) + len(probes)
    # Records are few and small here: several threads wait for each other, and took eight times the CPU seconds of one.
    with one_thread(), tqdm(total=number, desc="Pre-flight" if quick else "Mechanism", leave=False) as bar:
        if row is not None:
            num_records, lengths = size_of_audit(row, quick)
            records = {"stand_in_records": num_records, "num_canaries": num_records // 2, "steps": lengths}
            settings |= settings_of(row) | records
            outcomes[DP_SGD] = stand_in_runs(row, delta, quick=quick)
            bar.update()
        for target in targets:
            outcomes[target.row.name] = target_runs(target, **asked)
            bar.update()
        for probe in probes:
            checks += probe()
            bar.update()
    return Audit("mechanism", settings, outcomes, checks, time.perf_counter() - start)


def probes_of_steps(
    row: LedgerRow, model: AuditedModel | None, *, bf16: bool, thorough: bool
) -> list[Callable[[], list[Check]]]:
    """Of a run's own model, and of what does not follow from a model. The first one says by name what the others would
    stumble over."""
    probes: list[Callable[[], list[Check]]] = []
    if model is not None:
        probes += [
            lambda: own_gradient_checks(row, model, bf16=bf16),
            lambda: additivity_checks(row, model, "the model", model_tolerance(bf16)),
        ]
    return probes + [
        lambda: sensitivity_checks(row, thorough=thorough),
        lambda: additivity_checks(row, stand_in(), "stand-in"),
        lambda: noise_checks_at_the_door(row, model or stand_in()),
    ]


def _queries(facts: PublicFacts, plan: Plan) -> list[AuditTarget]:
    rows, shown = plan.rows, (facts.image_shape, facts.class_names)
    targets: list[AuditTarget] = [] if TEACHERS not in rows else [TeachersTarget(rows[TEACHERS])]
    targets += [QueryTarget(query, rows[query.name], *shown) for query in plan.queries]
    if "evaluation_reserve" in rows:
        targets.append(evaluation_target(rows["evaluation_reserve"], *shown))
    return targets
