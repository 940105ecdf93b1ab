# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A lower bound on epsilon from a release, where a coin decided before training which images were used.

Each image was held out by an independent coin of a known share. The images that are attacked are chosen so that, given
the choice, each of them was used with probability 1/2, independently: all held-out images, and each used one with
probability `share / (1 - share)`. Then guesses of these coins bound epsilon (Steinke, Nasr and Jagielski 2023, Theorem
5.2). Without such coins, a difference between the two sets (a shift) shows like membership, and nothing is bounded.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ..errors import UsageError
from .bounds import guess_coins, one_run_epsilon


CONFIDENCE = 0.95
#: Probability below which numbers of images do not come from the stated coin.
IMPLAUSIBLE = 1e-6


@dataclass(frozen=True)
class LowerBound:
    """What guesses of fair coins show.

    Args:
        epsilon (`float`): Lower bound, with `CONFIDENCE`; 0 if nothing is shown.
        delta (`float`): Delta at which it holds.
        coins, guesses, correct (`int`): Images whose coin was unknown, how many were guessed, and how many rightly.
    """

    epsilon: float
    delta: float
    coins: int
    guesses: int
    correct: int


def stated_coin(receipt: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what the receipt says of images that `--validation_size` held out, and of how many (`of`).

    Args:
        receipt (`dict`, *optional*): Receipt of the release.

    Raises:
        UsageError: It says nothing, or the release protects units of several images.
    """
    facts = {} if receipt is None else receipt["public_facts"]
    held_out = facts.get("held_out")
    if receipt is None or held_out is None:
        raise UsageError(
            "--holdout is missing: give images that were not trained on. It can be left out if the training had "
            "--validation_size."
        )
    unit = receipt["unit_of_privacy"]
    if unit != "image":
        raise UsageError(
            f"A coin bounds epsilon for single images, and this release protects one {unit}: give --holdout."
        )
    return {**held_out, "of": facts["num_images"] + held_out["images"]}


def fair_coins(
    num_members: int, num_others: int, share: float, most: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses images so that each chosen one was used with probability 1/2, given that it was chosen.

    Args:
        num_members, num_others (`int`): All images that were used, and all that the coin held out.
        share (`float`): Probability with which each image was held out.
        most (`int`): About twice as many images are chosen at most.
        seed (`int`): Of choices that do not depend on the images.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Places of chosen members, and of chosen others.

    Raises:
        UsageError: Such a coin does not give these numbers.
    """
    plausible = float(stats.binomtest(num_others, num_members + num_others, share).pvalue)
    if plausible < IMPLAUSIBLE:
        raise UsageError(
            f"--members has {num_members:,} images that were used and {num_others:,} that were held out, which a coin "
            f"of probability {share:.4g} does not give: it must be the whole data set of the training."
        )
    odds = share / (1 - share)
    kept = min(1.0, 2 * most / (min(1.0, odds) * num_members + min(1.0, 1 / odds) * num_others))
    rng = np.random.default_rng(seed)
    chosen = (
        np.flatnonzero(rng.random(number) < kept * min(1.0, chance))
        for number, chance in ((num_members, odds), (num_others, 1 / odds))
    )
    members, others = chosen
    return members, others


def lower_bound(inside: np.ndarray, outside: np.ndarray, delta: float) -> LowerBound:
    """Bounds epsilon by guesses about the images with the highest and the lowest scores.

    Args:
        inside, outside (`np.ndarray`, 1-d): Scores of images that `fair_coins` chose: used, and held out.
        delta (`float`): Delta, at least 0.
    """
    scores = np.concatenate([inside, outside])
    taken = np.arange(len(scores)) < len(inside)
    order = np.random.default_rng(0).permutation(len(scores))  # equal scores tell nothing
    guesses, correct = guess_coins(scores[order], taken[order])
    found = one_run_epsilon(len(scores), guesses, correct, delta, CONFIDENCE)
    return LowerBound(found, delta, len(scores), guesses, correct)


def conclusion(bound: LowerBound | None, claimed: float | None) -> str:
    """Says in words what an attack on the two sets shows."""
    if bound is None:
        return (
            "No coin decided before training which images were used. So the result measures a shift between the two "
            "sets as well as membership, and it bounds no epsilon."
        )
    if bound.epsilon == 0:
        return (
            "A coin decided before training which images were used. This attack shows no lower bound on epsilon above "
            "0, which is no proof of protection."
        )
    said = (
        f"A coin decided before training which images were used. This attack shows that epsilon at delta "
        f"{bound.delta:.3g} is at least {bound.epsilon:.3f}, with a confidence of {100 * CONFIDENCE:g} %."
    )
    if claimed is not None and bound.epsilon > claimed:
        return f"{said} THIS CONTRADICTS the claimed epsilon {claimed:.4f}."
    return said
