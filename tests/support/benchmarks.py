# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Folder of the benchmarks."""

from support.places import ROOT


BENCHMARKS = ROOT / "benchmarks"
