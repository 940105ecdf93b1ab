# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run has done so far. Nothing here loads torch."""

import json
import time
from pathlib import Path

from ..accounting.ledger import PrivacyLedger


STAGES = "stages.jsonl"  # in `private/`


class StageTable:
    """The closing table: stage, epsilon spent so far, seconds.

    Args:
        private (`Path`, *optional*): Folder that keeps a line for each stage, with its processor time. A resumed run
            adds its own lines.
    """

    def __init__(self, private: Path | None = None):
        self.rows: list[tuple[str, float, float]] = []
        self.private = private
        self.clock, self.processor = time.perf_counter(), time.process_time()

    def done(self, stage: str, ledger: PrivacyLedger) -> None:
        now, processor = time.perf_counter(), time.process_time()
        self.rows.append((stage, ledger.epsilon(), now - self.clock))
        if self.private is not None:
            line = {"stage": stage, "seconds": now - self.clock, "processor_seconds": processor - self.processor}
            with open(self.private / STAGES, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self.clock, self.processor = now, processor

    def __str__(self) -> str:
        lines = [f"{'stage':<24} {'epsilon so far':>14} {'seconds':>9}"]
        return "\n".join(
            lines + [f"{stage:<24} {epsilon:>14.4f} {seconds:>9.1f}" for stage, epsilon, seconds in self.rows]
        )
