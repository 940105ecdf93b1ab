# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an audit found: a verdict with its reasons, a table for people, and JSON."""

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from .. import __version__
from ..accounting.ledger_row import LedgerRow
from ..verify import FORMAT
from .checks import ESTIMATE_CONFIDENCE, FORMAL_CONFIDENCE, SIGNIFICANCE, Check, Outcome


NAMES = {1.0: "honest", 0.0: "noise off", 0.5: "noise halved"}


@dataclass(frozen=True)
class Audit:
    """The result of tier A or B.

    Args:
        tier (`str`): `mechanism` or `run`.
        settings (`dict`): Public numbers of what was audited.
        outcomes (`dict[str, list[Outcome]]`): For each mechanism its honest run and its broken ones.
        checks (`list[Check]`): What was looked at besides.
        seconds (`float`): It took.
    """

    tier: str
    settings: dict[str, Any]
    outcomes: dict[str, list[Outcome]]
    checks: list[Check]
    seconds: float

    @property
    def reasons(self) -> list[str]:
        """What speaks against the audited code, or against the audit; empty if nothing does."""
        found = [check.name for check in self.checks if not check.passed]
        if not self.outcomes:
            found.append("no mechanism was run")
        for mechanism, outcomes in self.outcomes.items():
            for outcome in outcomes:
                name = NAMES[outcome.noise_scale]
                if outcome.noise_scale == 1:
                    found += [f"{mechanism}: {failure}" for failure in outcome.failures]
                else:
                    found += [f"{mechanism} ({name}): {fault}" for fault in outcome.faults]
                    if not outcome.noise_noticed:
                        found.append(f"{mechanism}: the run with the {name} was not rejected")
        return found

    @property
    def verdict(self) -> str:
        """`VALID`: the honest run passes everything, and each broken one passes what does not depend on the noise and
        is rejected by what does. Otherwise `INCONCLUSIVE`."""
        return "INCONCLUSIVE" if self.reasons else "VALID"

    def as_json(self) -> dict[str, Any]:
        """All of it, JSON-able; numbers that are not finite become `null`."""
        return {
            "format": FORMAT,
            "tier": self.tier,
            "verdict": self.verdict,
            "reasons": self.reasons,
            "read_private_data": False,
            "settings": self.settings,
            "library": {"name": "diffusers_dp", "version": __version__},
            "created_utc": datetime.now(timezone.utc).date().isoformat(),
            "confidence": {
                "formal_bound": FORMAL_CONFIDENCE,
                "gaussian_estimate": ESTIMATE_CONFIDENCE,
                "significance_of_a_check": SIGNIFICANCE,
            },
            "mechanisms": {
                mechanism: {
                    "claimed_epsilon": outcomes[0].claimed_epsilon,
                    "num_checks": len(outcomes[0].checks),
                    **{
                        NAMES[o.noise_scale]: {
                            "formal_bound": o.formal_bound,
                            "gaussian_estimate": o.gaussian_estimate,
                            "rejected_by": o.failures,
                        }
                        for o in outcomes
                    },
                }
                for mechanism, outcomes in self.outcomes.items()
            },
            "seconds": round(self.seconds, 1),
            "checks": [_plain(asdict(check)) for check in self.checks],
            "details": {
                mechanism: {NAMES[o.noise_scale]: [_plain(asdict(check)) for check in o.checks] for o in outcomes}
                for mechanism, outcomes in self.outcomes.items()
            },
        }

    def __str__(self) -> str:
        lines = [f"{'mechanism':<20} {'run':<13} {'claim':>7} {'formal bound':>13} {'Gaussian est.':>14}  rejected by"]
        for mechanism, outcomes in self.outcomes.items():
            for o in outcomes:
                formal = "-" if o.formal_bound is None else f"{o.formal_bound:.3f}"
                because = o.failures
                words = because[0] if because else "nothing"
                more = f" and {len(because) - 1} more" if len(because) > 1 else ""
                lines.append(
                    f"{mechanism:<20} {NAMES[o.noise_scale]:<13} {o.claimed_epsilon:>7.3f} {formal:>13}"
                    f" {o.gaussian_estimate:>14.3f}  {words}{more}"
                )
        number = len(self.checks) + sum(len(outcomes[0].checks) for outcomes in self.outcomes.values())
        lines.append(f"{number} checks of the honest code, {self.seconds:.1f} s.")
        lines.append(self.verdict + "".join(f"\n- {reason}" for reason in self.reasons))
        return "\n".join(lines)


def settings_of(row: LedgerRow) -> dict[str, Any]:
    """The numbers of a step of DP-SGD."""
    mechanism, facts = row.mechanism, row.facts
    return {
        "sample_rate": mechanism.sample_rate, "noise_multiplier": mechanism.noise_multiplier,
        "max_grad_norm": facts["clip_norm"], "normaliser": facts["normaliser"],
        "noise_multiplicity": facts["noise_multiplicity"],
        **({} if mechanism.num_groups == 1 else {"noise_bands": mechanism.num_groups}),
    }  # fmt: skip


def _plain(check: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not abs(value) < float("inf") else value
        for key, value in check.items()
    }
