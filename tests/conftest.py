# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Fixtures of several test files: the training script, and a release that was made honestly."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from test_release import make_release


SCRIPT = Path(__file__).resolve().parent.parent / "training" / "train_feta_pro.py"


@pytest.fixture
def script(monkeypatch):
    """The script as a module; it leaves the threads of the test process alone."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    spec = importlib.util.spec_from_file_location("train_feta_pro", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("run"))


@pytest.fixture
def release(honest, tmp_path):
    """A copy to tamper with."""
    return Path(shutil.copytree(honest, tmp_path / "release"))
