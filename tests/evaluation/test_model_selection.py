# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether a ranking made on synthetic images holds: against rankings by hand, and on real digits."""

import json
import math
import pickle

import pytest

from diffusers_dp.data.images import load_digits_split
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.model_selection import Ranking, candidates, measure_model_selection


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


def test_two_neighbours_swapped():
    """By the formula without ties: 1 - 6 sum d^2 / (n (n^2 - 1))."""
    ranking = Ranking(NAMES, (1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 4.0, 3.0))
    assert ranking.spearman == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert ranking.regret == 1


def test_of_equals_the_first_is_chosen_and_real_images_do_not_help():
    assert Ranking(NAMES, (9.0, 9.0, 1.0, 1.0), (50.0, 60.0, 1.0, 2.0)).regret == 10
    equally_good = Ranking(NAMES, (9.0, 8.0, 1.0, 1.0), (60.0, 60.0, 1.0, 2.0))
    assert values(equally_good.measurements({}))["top-1 agrees"] == 1


def test_no_ranking_has_no_correlation():
    ranking = Ranking(NAMES, (9.0,) * 4, (1.0, 2.0, 3.0, 4.0))
    assert math.isnan(ranking.spearman)
    rows = ranking.measurements({})
    assert set(values(rows)) == {"top-1 agrees", "regret"}
    json.dumps([row.as_json() for row in rows], allow_nan=False)


def test_real_digits_rank_alike(digits):
    """Two halves of one data set: the ranking must hold."""
    train, test = digits
    rows, ranking = measure_model_selection(train, test, epochs=3)
    assert len(ranking.names) == 10 == len(set(ranking.names))
    assert ranking.spearman > 0.7 and 0 <= ranking.regret < 10
    assert rows[0].protocol["num_train"] == 1437 * 11 // 12 and rows[0].protocol["num_test"] == 360
    json.dumps([row.as_json() for row in rows], allow_nan=False)


def test_the_list_is_fixed_and_says_what_it_holds():
    models = candidates((1, 8, 8), seed=0, epochs=None, device="cpu")
    assert list(models)[0] == "logreg, C = 0.0001" and list(models)[-1] == "cnn, width 16"
    assert models["mlp, 32 units"]().protocol["hidden"] == 32
    assert models["logreg, C = 0.01"]().protocol["inverse_penalty"] == 0.01
    assert models["cnn, width 8"]().build((1, 8, 8), 10)[0].out_channels == 8
    sent = pickle.loads(pickle.dumps(list(models.values())))  # to other processes
    assert [each().protocol for each in sent] == [each().protocol for each in models.values()]
