# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Judges synthetic images against real ones: fidelity, utility, and a report that says what it read.

Besides the door it is the one place that reads real images; it imports nothing from `training/`, and what it finds is
private unless the real images are declared public.
"""
