# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A as a whole: every query of a run, on stand-in records."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from tqdm.auto import tqdm

from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..data.images import PublicFacts
from ..distributed.processes import one_thread
from ..methods.private_training import PrivateTraining
from ..runs.plan import Plan
from .checks import Check, Outcome, size_of_audit, stand_in_runs
from .own_gradients import own_gradient_checks
from .probes import TOLERANCE, TOLERANCE_BF16, additivity_checks, noise_checks_at_the_door, sensitivity_checks
from .report import Audit, settings_of
from .stand_ins import AuditedModel, stand_in
from .targets import AuditTarget, QueryTarget, target_runs, untrained_judge
from .teacher_targets import TeachersTarget, own_teacher_checks


DRAWS, QUICK_DRAWS = 500, 60


def audit_mechanism(
    facts: PublicFacts,
    plan: Plan,
    models: Mapping[str, AuditedModel] = MappingProxyType({}),
    *,
    bf16: bool = False,
    quick: bool = False,
) -> Audit:
    """Every query of a run, put to stand-in records through the real door; no image is read.

    Args:
        facts, plan: Of the run.
        models (`dict[str, AuditedModel]`): The run's own, by the name of the row, for the probes; without it a
            stand-in's only. That of DP-SGD is the one of teachers, too.
        bf16 (`bool`): Whether its model computes in mixed precision.
        quick (`bool`): Fewer steps and draws, for the pre-flight.

    Returns:
        `Audit`: With a verdict.
    """
    start, delta = time.perf_counter(), plan.ledger.target_delta
    draws, accountant, title = (QUICK_DRAWS, "rdp", "Pre-flight") if quick else (DRAWS, "pld", "Mechanism")
    settings: dict[str, Any] = {"delta": delta}
    mechanisms: dict[str, Callable[[], list[Outcome]]] = {}
    probes: list[Callable[[], list[Check]]] = []
    trainings = [query.name for query in plan.queries if isinstance(query, PrivateTraining)]
    for row in [plan.rows[name] for name in (*trainings, DP_SGD) if name in plan.rows]:
        num_records, lengths = size_of_audit(row, quick)
        records = {"stand_in_records": num_records, "num_canaries": num_records // 2, "steps": lengths}
        settings |= settings_of(row) | records  # those of DP-SGD come last
        mechanisms[row.name] = partial(stand_in_runs, row, delta, quick=quick)
        probes += probes_of_steps(row, models.get(row.name), bf16=bf16, thorough=not quick)
    for target in _targets(facts, plan):
        mechanisms[target.row.name] = partial(target_runs, target, delta=delta, draws=draws, accountant=accountant)
    if TEACHERS in plan.rows and DP_SGD in models:
        probes.append(partial(own_teacher_checks, plan.rows[TEACHERS], models[DP_SGD]))
    outcomes, checks = dict[str, list[Outcome]](), list[Check]()
    # Records are few and small here: several threads wait for each other, and took eight times the CPU seconds of one.
    with one_thread(), tqdm(total=len(mechanisms) + len(probes), desc=title, leave=False) as bar:
        for name, runs in mechanisms.items():
            outcomes[name] = runs()
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
            lambda: additivity_checks(row, model, "the model", TOLERANCE_BF16 if bf16 else TOLERANCE),
        ]
    return probes + [
        lambda: sensitivity_checks(row, thorough=thorough),
        lambda: additivity_checks(row, stand_in(), "stand-in"),
        lambda: noise_checks_at_the_door(row, model or stand_in()),
    ]


def _targets(facts: PublicFacts, plan: Plan) -> list[AuditTarget]:
    rows, shown = plan.rows, (facts.image_shape, facts.class_names)
    targets: list[AuditTarget] = [] if TEACHERS not in rows else [TeachersTarget(rows[TEACHERS])]
    asked = [query for query in plan.queries if not isinstance(query, PrivateTraining)]
    targets += [QueryTarget(query, rows[query.name], *shown) for query in asked]
    if "evaluation_reserve" in rows:
        judge = untrained_judge(*shown)
        targets.append(QueryTarget(judge.query, rows["evaluation_reserve"], *shown, judge.features))
    return targets
