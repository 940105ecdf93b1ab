# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""From an attacker's hits and misses to lower bounds on epsilon.

`one_run_epsilon` is a theorem (it holds for every mechanism), the Gaussian estimate is an estimate: it takes the
scores for normal variables and the canaries for independent ones.
"""

import math

import numpy as np
from dp_accounting import get_epsilon_gaussian
from scipy import optimize, stats


MAX_EPSILON = 200.0


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """One-sided limits of a probability (Clopper & Pearson 1934), each exceeded with probability `1 - confidence` at
    most.

    Args:
        hits, trials (`int`): `0 <= hits <= trials`.
        confidence (`float`): Confidence of each limit, in (1/2, 1).

    Returns:
        `tuple[float, float]`: The lower and the upper limit, in [0, 1].
    """
    low, high = stats.binomtest(hits, trials).proportion_ci(2 * confidence - 1)
    return float(low), float(high)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon of a mu-GDP mechanism at `delta` (Dong, Roth & Su 2022, Corollary 2.13), at most 200."""
    return min(MAX_EPSILON, float(get_epsilon_gaussian(1 / mu, delta))) if mu > 0 else 0.0


def gaussian_estimate(
    scores_in: np.ndarray, scores_out: np.ndarray, threshold: float, delta: float, confidence: float
) -> float:
    """Lower estimate of epsilon from the errors of "in if the score is above the threshold", if the mechanism is
    Gaussian.

    `mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)` (Dong, Roth & Su 2022, Equation 6) with Clopper-Pearson's upper limits of
    both error rates, each at `confidence`, for a threshold that was **fixed beforehand**; epsilon by
    `gaussian_epsilon` (Nasr et al. 2023, Section 4). An estimate: it rests on the shape of the scores.

    Args:
        scores_in, scores_out (`np.ndarray`, 1-d, not empty): Scores of canaries that took part and of those that did
            not.

    Returns:
        `float`: 0 if the attacker is no better than chance.
    """
    _, fpr = clopper_pearson(int((scores_out > threshold).sum()), len(scores_out), confidence)
    _, fnr = clopper_pearson(int((scores_in <= threshold).sum()), len(scores_in), confidence)
    if fpr >= 1 or fnr >= 1:
        return 0.0
    return gaussian_epsilon(float(stats.norm.ppf(1 - fpr) - stats.norm.ppf(fnr)), delta)


def one_run_p_value(epsilon: float, num_canaries: int, num_guesses: int, num_correct: int, delta: float) -> float:
    """Probability with which an (epsilon, delta)-DP mechanism allows so many correct guesses, at most (Steinke, Nasr &
    Jagielski 2023, Theorem 5.2): `P[Bin(r, s) >= v] + 2 m delta max_i P[v - i <= Bin(r, s) < v] / i`, `s = e^eps / (1
    + e^eps)`.

    Args:
        num_canaries (`int`): m, canaries that took part by a fair coin each.
        num_guesses (`int`): r <= m, how many of the coins were guessed.
        num_correct (`int`): v <= r.
    """
    success = 1 / (1 + math.exp(-epsilon))
    cumulative = stats.binom.cdf(np.arange(-1, num_guesses + 1), num_guesses, success)  # P[Bin <= k], from k = -1
    tail = float(stats.binom.sf(num_correct - 1, num_guesses, success))
    steps = np.arange(1, num_correct + 1)
    part = cumulative[num_correct] - cumulative[num_correct - steps]  # P[v - i <= Bin <= v - 1]
    slack = float((part / steps).max()) if num_correct else 0.0
    return min(1.0, tail + 2 * num_canaries * delta * slack)


def one_run_epsilon(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The formal lower bound on epsilon from one run: the largest that `one_run_p_value` rejects (Steinke, Nasr &
    Jagielski 2023, Algorithm 1 and Theorem 5.2).

    However bad the mechanism, r guesses cannot show more than `logit((1 - confidence)^(1/r))`: 3.5 for 100, 5.8 for
    1,000 and 7.4 for 5,000 at 95 %.

    Returns:
        `float`: 0 if nothing can be rejected; at most 200.
    """

    def rejected(epsilon: float) -> float:
        return one_run_p_value(epsilon, num_canaries, num_guesses, num_correct, delta) - (1 - confidence)

    return 0.0 if rejected(0.0) >= 0 else float(optimize.brentq(rejected, 0.0, MAX_EPSILON, xtol=1e-6))


def guess_coins(scores: np.ndarray, taken: np.ndarray, share: float = 1 / 3) -> tuple[int, int]:
    """An attacker who guesses only where the scores are extreme: the highest as "in", the lowest as "out".

    Args:
        scores (`np.ndarray`, shape `[m]`): Scores of all canaries.
        taken (`np.ndarray` of bool, shape `[m]`): Whether the coin let a canary take part.
        share (`float`, defaults to 1/3): Share of canaries that are guessed, half of them at each end; fixed before.

    Returns:
        `tuple[int, int]`: Guesses and correct guesses.
    """
    each = max(1, int(len(scores) * share / 2))
    order = np.argsort(scores, kind="stable")
    return 2 * each, int(taken[order[-each:]].sum() + (~taken[order[:each]]).sum())
