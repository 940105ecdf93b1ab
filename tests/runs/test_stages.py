# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Times of stages: a line in `private/` for each that ends, in every start of a run."""

import json
import time

from diffusers_dp.runs.stages import STAGES, StageTable
from support.receipts import make_ledger


def test_each_stage_leaves_its_seconds_and_its_processor_time(tmp_path):
    ledger, table = make_ledger(), StageTable(tmp_path)
    time.sleep(0.2)
    table.done("waiting", ledger)
    start = time.process_time()
    while time.process_time() - start < 0.2:
        pass
    table.done("work", ledger)
    StageTable(tmp_path).done("work", ledger)  # a resumed run
    lines = [json.loads(line) for line in (tmp_path / STAGES).read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["waiting", "work", "work"]
    assert lines[0]["seconds"] >= 0.2 > 0.15 > lines[0]["processor_seconds"]
    assert lines[1]["processor_seconds"] >= 0.19
    assert "waiting" in str(table) and "processor" not in str(table)
