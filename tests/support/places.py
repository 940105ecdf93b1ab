# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Where things are."""

from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FETA_PRO = ROOT / "training" / "train_feta_pro.py"
