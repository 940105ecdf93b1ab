# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A in short, before each training. Scripts import this before they read their flags: the call loads torch."""

from typing import TYPE_CHECKING, Any

from ..data.images import PublicFacts
from ..errors import IntegrityError
from ..methods.flags import TrainingConfig
from ..runs.plan import Plan


if TYPE_CHECKING:
    from ..gradients.step import RowLoss


def preflight(config: TrainingConfig, facts: PublicFacts, plan: Plan, denoiser: Any, loss: "RowLoss") -> None:
    """A short `audit_mechanism` with the run's own model, before anything is spent. It says in one line that it
    passed. Of a run without guarantee there is nothing to audit.

    Raises:
        IntegrityError: Something failed; names it.
    """
    if not config.has_guarantee:
        return
    from .mechanism import AuditedModel
    from .mechanism_audit import audit_mechanism

    audit = audit_mechanism(
        config, facts, plan, AuditedModel(denoiser, loss, facts.image_shape, facts.class_names), quick=True
    )
    if audit.reasons:
        raise IntegrityError(
            f"The pre-flight audit found the mechanism broken ({'; '.join(audit.reasons)}): nothing was spent; repair "
            "the library, and do not use --skip_preflight."
        )
    number = len(audit.checks) + sum(len(runs[0].checks) for runs in audit.outcomes.values())
    print(f"Pre-flight audit: {number} checks passed, broken noise was noticed ({audit.seconds:.1f} s).")
