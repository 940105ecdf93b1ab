# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the training scripts import, loaded once for all processes that `forked.start` starts."""

import importlib.util

import datasets  # noqa: F401
import torch

from diffusers_dp.methods.registry import METHODS
from support.places import ROOT


torch.set_num_threads(1)
for method in METHODS.values():
    if method.script:
        spec = importlib.util.spec_from_file_location("imported", ROOT / method.script)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
