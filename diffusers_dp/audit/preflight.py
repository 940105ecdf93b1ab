# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A in short, before each training. A script imports it before it reads its flags, so torch is loaded when it is
called."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..accounting.ledger_row import DP_SGD
from ..data.images import PublicFacts
from ..errors import IntegrityError
from ..runs.plan import Plan


if TYPE_CHECKING:
    from ..runs.dp_sgd import Trained


def preflight(
    facts: PublicFacts, plan: Plan, trained: "Trained | None" = None, *, bf16: bool = False,
    others: "Mapping[str, Trained] | None" = None,
) -> None:  # fmt: skip
    """A short `audit_mechanism` with the run's own model, before anything is spent. It says in one line that it
    passed. Of a run without guarantee there is nothing to audit.

    Args:
        facts, plan, bf16: As for `audit_mechanism`.
        trained (`Trained`, *optional*): The run's own model, new, and the loss of its rows.
        others (`dict[str, Trained]`, *optional*): Those of the other trainings of the plan, by their rows.

    Raises:
        UnsupportedModel: The model's gradients per image are not those of autograd; names the parameters, or the
            layer.
        IntegrityError: Something failed; names it.
    """
    if not plan.ledger.has_guarantee:
        return
    from .mechanism_audit import audit_mechanism
    from .stand_ins import AuditedModel

    known = {DP_SGD: trained, **(others or {})}
    models = {
        name: AuditedModel.of(each, facts.image_shape, facts.class_names) for name, each in known.items() if each
    }
    audit = audit_mechanism(facts, plan, models, bf16=bf16, quick=True)
    if audit.reasons:
        raise IntegrityError(
            f"The pre-flight audit found the mechanism broken ({'; '.join(audit.reasons)}): nothing was spent; repair "
            "the library, and do not use --skip_preflight."
        )
    number = len(audit.checks) + sum(len(runs[0].checks) for runs in audit.outcomes.values())
    print(f"Pre-flight audit: {number} checks passed, broken noise was noticed ({audit.seconds:.1f} s).")
