# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs of an earlier version, half-finished and finished, which every later one must go on with and verify: see
`make_golden.py`."""
