# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Programs in several processes."""

import os
import subprocess
import sys

import pytest

from support.places import ROOT, TESTS


SEVERAL = (2, pytest.param(4, marks=pytest.mark.slow))


def launch(count, *command, patience=200, machines="--standalone"):
    """`torchrun`, on CPUs."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment.get("PYTHONPATH", "")])
    launcher = [sys.executable, "-m", "torch.distributed.run", *machines.split(), f"--nproc_per_node={count}"]
    return subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=patience
    )
