# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Faults that would break the guarantee, as they happened elsewhere or easily could: `faults/` has a table for each
room. `README.md` says which tests answer for what."""

from pathlib import Path

import yaml

from .fault import Fault


FAULTS = tuple(
    Fault(**{"file": file, **fault, "tests": tuple(fault["tests"])})
    for table in sorted(Path(__file__).with_name("faults").glob("*.yaml"))
    for file, faults in yaml.safe_load(table.read_text(encoding="utf-8")).items()
    for fault in faults
)
