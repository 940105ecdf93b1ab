# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Lower bounds from coins that decided before training: fair after the choice, and never above the truth."""

import numpy as np
import pytest

from diffusers_dp.audit.bounds import gaussian_epsilon
from diffusers_dp.audit.random_split import fair_coins, lower_bound, stated_coin
from diffusers_dp.errors import UsageError


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_a_chosen_image_was_used_with_probability_a_half(share):
    """Whatever the coin's share; and with a limit each is chosen alike."""
    rng = np.random.default_rng(0)
    for most in (10**9, 500):
        sides = np.zeros(2)
        for seed in range(30):
            used = int((rng.random(4000) >= share).sum())
            sides += [len(places) for places in fair_coins(used, 4000 - used, share, most, seed)]
        assert abs(sides[0] / sides.sum() - 0.5) < 4 * 0.5 / np.sqrt(sides.sum())
        assert sides.sum() / 30 == pytest.approx(min(2 * most, 8000 * min(share, 1 - share)), rel=0.1)


@pytest.mark.parametrize(("members", "others", "share"), [(1000, 1000, 0.1), (2000, 100, 0.5), (1000, 0, 0.2)])
def test_numbers_that_no_such_coin_gives_are_refused(members, others, share):
    """As where one of the data sets is a part of what there was."""
    with pytest.raises(UsageError, match="does not give"):
        fair_coins(members, others, share, 1000)


def attack(mu, share, rng):
    """Scores of one run of a Gaussian mechanism on 3,000 images, each held out by a coin."""
    used = rng.random(3000) >= share
    scores = rng.normal(size=3000) + mu * used
    members, others = scores[used], scores[~used]
    chosen = fair_coins(len(members), len(others), share, 10**9)
    return members[chosen[0]], others[chosen[1]]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_bound_holds_and_is_not_empty(share):
    """Of 150 simulated runs at epsilon 2 none shows more; without noise they show much."""
    rng = np.random.default_rng(1)
    mu = 0.5015
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(2, abs=0.01)
    found = [lower_bound(*attack(mu, share, rng), 1e-5).epsilon for _ in range(150)]
    assert max(found) < 2 and (share != 0.5 or np.median(found) > 0.3)
    assert lower_bound(*attack(30.0, share, rng), 1e-5).epsilon > 3


def test_scores_that_tell_nothing_show_nothing():
    """Equal ones, too, in whatever order the two sets come."""
    for scores in (np.zeros(500), np.random.default_rng(2).normal(size=500)):
        assert lower_bound(scores[:250], scores[250:], 1e-5).epsilon == 0


def test_the_coin_is_the_receipt_s():
    held_out = {"images": 500, "ids": "path", "column": None}
    receipt = {"unit_of_privacy": "image", "public_facts": {"num_images": 4500, "held_out": held_out}}
    assert stated_coin(receipt) == {**held_out, "of": 5000}
    for without in (None, {**receipt, "public_facts": {"num_images": 4500}}):
        with pytest.raises(UsageError, match="--holdout is missing"):
            stated_coin(without)
    with pytest.raises(UsageError, match="one patient"):
        stated_coin({**receipt, "unit_of_privacy": "patient"})
