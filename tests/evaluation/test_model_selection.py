# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether a ranking made on synthetic images holds: against rankings by hand, and on real digits."""

import pytest

from diffusers_dp.evaluation.model_selection import compare_rankings


@pytest.mark.parametrize(
    ("real", "expected"),
    [((10.0, 11.0, 12.0, 13.0), (1.0, 1.0, 0.0)), ((93.0, 92.0, 91.0, 90.5), (-1.0, 0.0, 2.5))],
    ids=["the same", "the reverse"],
)
def test_the_ranking(real, expected):
    rows = compare_rankings("abcd", (50.0, 60.0, 70.0, 80.0), real, {})
    assert [row.metric.split(": ")[1] for row in rows] == ["Spearman correlation", "top-1 agrees", "regret"]
    assert [row.value for row in rows] == pytest.approx(expected)
    assert rows[0].protocol["chosen_on_synthetic"] == "d"
