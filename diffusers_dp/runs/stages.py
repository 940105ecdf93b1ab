# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run has done so far. Nothing here loads torch."""

import time

from ..accounting.ledger import PrivacyLedger


class StageTable:
    """The closing table: stage, epsilon spent so far, seconds."""

    def __init__(self):
        self.rows: list[tuple[str, float, float]] = []
        self.clock = time.perf_counter()

    def done(self, stage: str, ledger: PrivacyLedger) -> None:
        now = time.perf_counter()
        self.rows.append((stage, ledger.epsilon(), now - self.clock))
        self.clock = now

    def __str__(self) -> str:
        lines = [f"{'stage':<24} {'epsilon so far':>14} {'seconds':>9}"]
        return "\n".join(
            lines + [f"{stage:<24} {epsilon:>14.4f} {seconds:>9.1f}" for stage, epsilon, seconds in self.rows]
        )
