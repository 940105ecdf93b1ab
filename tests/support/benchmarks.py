# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks, and flags that make one quick."""

from support.flags import TINY
from support.places import ROOT


BENCHMARKS = ROOT / "benchmarks"
QUICK_FLAGS = [flag for flag in TINY if flag != "--skip_preflight"] + [
    "--target_epsilon",
    "4",
    "--checkpointing_steps",
    "2",
]
# Full batches, computed at once: their noise is soon calibrated.
QUICK_FLAGS += (
    "--train_batch_size 1437 --spatial_sample_rate 1 --noise_multiplicity 1 --max_physical_batch_size 1437 "
    "--patch_size 2"
).split()
