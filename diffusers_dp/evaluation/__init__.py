# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Evaluates synthetic images against real ones: fidelity, utility, and a report that lists the images it read.

Only this package and the door read real images. It imports nothing from `training/`. Its results are private unless
the real images are declared public.
"""
