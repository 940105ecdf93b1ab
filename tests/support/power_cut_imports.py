# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What training loads, loaded once for all processes that `power_cut.start` forks."""

import datasets  # noqa: F401
import torch

import diffusers_dp.audit.mechanism_audit  # noqa: F401
import diffusers_dp.runs.run  # noqa: F401


torch.set_num_threads(1)
