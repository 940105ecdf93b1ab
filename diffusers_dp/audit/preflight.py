# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A as a whole, and its short form before each training."""

import time
from typing import Any

from tqdm.auto import tqdm

from ..data import PublicFacts
from ..dpsgd.step import RowLoss
from ..errors import IntegrityError
from ..flags import TrainingConfig
from ..method_flags import DPFETAConfig, FETAProConfig
from ..planning import Plan
from ..queries import RandomFourierFeatures
from .additivity import additivity_checks, model_tolerance
from .mechanism import AuditedModel, Mechanism, canary_runs, size_of_audit, stand_in
from .one_shot import Query, central_images_query, frequency_query, mode_images_query, query_runs
from .probes import parameter_noise_checks, sensitivity_checks
from .report import Audit


DRAWS, QUICK_DRAWS = 500, 60


def audit_mechanism(
    config: TrainingConfig, facts: PublicFacts, plan: Plan, model: AuditedModel | None = None, *, quick: bool = False
) -> Audit:
    """Every question of a run, put to stand-in records through the real door; no image is read.

    Args:
        config, facts, plan: Of the run.
        model (`AuditedModel`, *optional*): The run's own, for the probes of `probes.py`; without it a stand-in's only.
        quick (`bool`): Fewer steps and draws, for the pre-flight.

    Returns:
        `Audit`: With a verdict.
    """
    start = time.perf_counter()
    mechanism = Mechanism.of(plan, config)
    num_records, steps = size_of_audit(mechanism, quick)
    with tqdm(desc="Pre-flight" if quick else "Mechanism", unit="step", leave=False) as bar:
        outcomes = {"dp_sgd": canary_runs(mechanism, quick=quick, progress=bar.update)}
        for query in _queries(config, facts, plan):
            outcomes[query.row.name] = query_runs(
                query, facts.image_shape, facts.class_names,
                delta=plan.sampling.target_delta, draws=QUICK_DRAWS if quick else DRAWS,
                accountant="rdp" if quick else "pld", progress=bar.update,
            )  # fmt: skip
        checks = sensitivity_checks(mechanism, stand_in(), tight=True, thorough=not quick)
        checks += additivity_checks(mechanism, stand_in(), "stand-in")
        if model is not None:
            checks += additivity_checks(mechanism, model, "the model", model_tolerance(config))
            checks += sensitivity_checks(mechanism, model, tight=False, thorough=False)
        checks += parameter_noise_checks(mechanism, model or stand_in())
    settings: dict[str, Any] = {
        "sample_rate": mechanism.sample_rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "max_grad_norm": mechanism.max_grad_norm,
        "normaliser": mechanism.normaliser,
        "noise_multiplicity": mechanism.noise_multiplicity,
        "truncated_poisson": mechanism.truncated,
        "delta": mechanism.delta,
        "stand_in_records": num_records,
        "num_canaries": num_records // 2,
        "steps": steps,
    }
    return Audit("mechanism", settings, outcomes, checks, time.perf_counter() - start)


def preflight(config: TrainingConfig, facts: PublicFacts, plan: Plan, denoiser: Any, loss: RowLoss) -> None:
    """A short `audit_mechanism` with the run's own model, before anything is spent; says in one line that it passed. Of a run without
    guarantee there is nothing to audit.

    Raises:
        IntegrityError: Something failed; names it.
    """
    if not config.has_guarantee:
        return
    audit = audit_mechanism(
        config, facts, plan, AuditedModel(denoiser, loss, facts.image_shape, facts.class_names), quick=True
    )
    if audit.reasons:
        raise IntegrityError(
            f"The pre-flight audit found the mechanism broken ({'; '.join(audit.reasons)}): nothing was spent; repair the library, and "
            "do not use --skip_preflight."
        )
    number = len(audit.checks) + sum(len(runs[0].checks) for runs in audit.outcomes.values())
    print(f"Pre-flight audit: {number} checks passed, broken noise was noticed ({audit.seconds:.1f} s).")


def _queries(config: TrainingConfig, facts: PublicFacts, plan: Plan) -> list[Query]:
    queries, classes = [], len(facts.class_names or ("",))
    if "central_images" in plan.rows:
        queries.append(central_images_query(plan.rows["central_images"], facts.image_shape, classes))
    if isinstance(config, DPFETAConfig) and "mode_images" in plan.rows:
        queries.append(mode_images_query(plan.rows["mode_images"], facts.image_shape, classes, config.bins))
    if isinstance(config, FETAProConfig) and "frequency_features" in plan.rows:
        features = RandomFourierFeatures(
            facts.image_shape, config.num_frequency_features, config.length_scale, config.seed
        )
        queries.append(frequency_query(plan.rows["frequency_features"], features))
    return queries
