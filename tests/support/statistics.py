# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tests of hypotheses."""

from scipy import stats


def dispersion(inclusions, rate):
    """Probabilities of batch sizes and of records' counts that are as even, and as uneven, as these; [T, N] of
    bools."""
    steps, records = inclusions.shape
    p_values = []
    for counts, trials in ((inclusions.sum(1), records), (inclusions.sum(0), steps)):
        statistic = ((counts - trials * rate) ** 2).sum() / (trials * rate * (1 - rate))
        p_values += [stats.chi2.cdf(statistic, len(counts)), stats.chi2.sf(statistic, len(counts))]
    return p_values
