# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Where things are, and files as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FETA_PRO = ROOT / "training" / "train_feta_pro.py"


def module_of(path: Path) -> ModuleType:
    """A file that is in no package, loaded anew; its dataclasses look it up by its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
