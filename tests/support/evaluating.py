# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate` as tests call it, and what it is given."""

import json

import numpy as np
import pytest

from diffusers_dp import cli


NAMES = ("class 0", "class 1", "class 2")
FAST = ("--extractors", "pixels", "--classifiers", "logreg", "--metrics", "fid", "--utility_sizes", "20")


def run(*flags):
    cli.main(["evaluate", *map(str, flags)])


def read(folder):
    return json.loads((folder / "report.json").read_text())


def refused(capsys, *flags, code=2):
    with pytest.raises(SystemExit) as stopped:
        run(*flags)
    assert stopped.value.code == code
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ")
    return said


def gaussian(count, dimension=6, seed=0, shift=0.0, scale=1.0):
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(dimension, dimension))
    return (rng.normal(size=(count, dimension)) @ mixing * scale + shift).astype(np.float32)
