# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the training scripts import, loaded once for all processes that `forked.start` starts."""

import os

import datasets  # noqa: F401
import torch

import diffusers_dp.audit.mechanism_audit  # noqa: F401
import diffusers_dp.runs.diffusion_run  # noqa: F401
from diffusers_dp.methods.registry import METHODS
from support.places import ROOT, module_of
from support.remembered import remember_accounting


torch.set_num_threads(1)
remember_accounting()
os.fsync = lambda descriptor: None
for method in METHODS.values():
    if method.script:
        module_of(ROOT / method.script)
