# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tries to break the guarantee: the mechanism alone, a run of a training script, a finished release.

Everything here goes through the real door, `SensitiveImages`, with the real ledger, sampler, clipper and noise, and
only watches from outside; a copy of them would audit itself.
"""
