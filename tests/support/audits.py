# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A step of DP-SGD that audits are tried on."""

from dataclasses import replace

from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.mechanisms import sampled


DELTA = 1e-5
STEP = gradient_row(sampled(0.2, 2.0), max_grad_norm=1e-3, normaliser=77, noise_multiplicity=3)


def changed(row=STEP, mechanism=None, **facts):
    """The row with another mechanism, or with other facts."""
    return replace(row, mechanism=mechanism or row.mechanism, facts=row.facts | facts)
