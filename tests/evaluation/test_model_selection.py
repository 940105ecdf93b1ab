# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether a ranking made on synthetic images holds: against rankings by hand, and on real digits."""

import pytest

from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.model_selection import Ranking


NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def digits():
    return [ImageSet(*load_digits_split(train=train), tuple("0123456789")) for train in (True, False)]


def values(rows):
    return {row.metric.removeprefix("model selection: "): row.value for row in rows}


@pytest.mark.parametrize(
    ("real", "expected"),
    [((10.0, 11.0, 12.0, 13.0), (1.0, 1.0, 0.0)), ((93.0, 92.0, 91.0, 90.5), (-1.0, 0.0, 2.5))],
    ids=["the same", "the reverse"],
)
def test_the_ranking(real, expected):
    ranking = Ranking(NAMES, (50.0, 60.0, 70.0, 80.0), real)
    names = ("Spearman correlation", "top-1 agrees", "regret")
    assert values(ranking.measurements({})) == pytest.approx(dict(zip(names, expected, strict=True)))
    assert ranking.names[ranking.chosen] == "d"
