# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an honest DP-SGD looks like from outside, as tests of hypotheses.

Each random check has a significance of 1e-5, and so has the formal bound. An audit of DP-SGD and three queries has at
most 44 of them: 17 of the honest run, 6 of the samplers of the two broken ones, 18 of the queries, 2 of the noise at
the door and the bound. The Gaussian estimate adds 2e-4 for each of the four mechanisms. So an honest implementation is
rejected in about one audit of 750 at most.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ..accounting.ledger_row import LedgerRow
from .bounds import gaussian_estimate, guess_coins, one_run_epsilon, one_run_p_value
from .canaries import Watch
from .turns import groups_of_rows, scored_turns, turns_of, whitened


SIGNIFICANCE = 1e-5
FORMAL_CONFIDENCE = 0.95
ESTIMATE_CONFIDENCE = 1 - 1e-4  # of each of its two error rates
ROUNDING = 1e-3  # relative, of sums that have no noise
NUM_FIXED_COINS = 2  # the first canaries': one takes part and one does not, so that neither side is empty
WITHOUT_NOISE = ("clipping:", "sampler:", "divisor:", "ledger:")  # checks that broken noise does not move


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        name (`str`): What.
        observed, expected (`float`): In the unit that the name says.
        p_value (`float`, *optional*): Probability under an honest implementation; `None` where nothing is random.
        passed (`bool`): Whether it looks honest.
    """

    name: str
    observed: float
    expected: float
    p_value: float | None
    passed: bool


@dataclass(frozen=True)
class Declared:
    """What the ledger and the plan say of DP-SGD.

    Args:
        row (`LedgerRow`): T steps, as they were asked; with groups, T is a multiple of their number.
        num_records (`int`): N of the audit.
        epsilon, delta (`float`): What T steps are said to cost.
    """

    row: LedgerRow
    num_records: int
    epsilon: float
    delta: float

    @property
    def max_grad_norm(self) -> float:
        return float(self.row.facts["clip_norm"])

    @property
    def std(self) -> float:
        """Of the noise of a sum."""
        return self.row.noise_multiplier * self.max_grad_norm


def random_check(name: str, observed: float, expected: float, p_value: float) -> Check:
    return Check(name, float(observed), float(expected), float(p_value), bool(p_value > SIGNIFICANCE))  # NaN fails


def exact_check(name: str, observed: float, expected: float, tolerance: float = 0.0) -> Check:
    return Check(name, float(observed), float(expected), None, bool(abs(observed - expected) <= tolerance))


def bounded_check(name: str, observed: float) -> Check:
    """`observed` is 1 at most."""
    return Check(name, observed, 1.0, None, bool(observed <= 1 + ROUNDING))  # NaN fails


def z_check(name: str, observed: float, expected: float, std: float) -> Check:
    """`observed` is normal around `expected`."""
    return random_check(name, observed, expected, 2 * stats.norm.sf(abs(observed - expected) / std))


def std_check(name: str, values: np.ndarray, std: float) -> Check:
    """`values` are independent `N(0, std^2)`: chi-square, both sides."""
    statistic, degrees = float(np.square(values / std).sum()), values.size
    p_value = 2 * min(stats.chi2.cdf(statistic, degrees), stats.chi2.sf(statistic, degrees))
    return random_check(name, std * math.sqrt(statistic / degrees), std, p_value)


def noise_checks(silent: np.ndarray, others: np.ndarray, std: float) -> list[Check]:
    """The noise of coordinates that no record touches: right in size and shape, and drawn anew for every step, tensor
    and coordinate.

    Args:
        silent (`np.ndarray`, shape `[T, m]`): Answers for the tensor that no loss uses.
        others (`np.ndarray`, shape `[T, m]`): Answers for another tensor, NaN where a record may have touched it.
        std (`float`): sigma C.
    """
    z = silent / std
    steps, size = z.shape
    checks = [
        std_check("noise: standard deviation", silent, std),
        z_check("noise: mean", silent.mean(), 0.0, std / math.sqrt(z.size)),
        random_check("noise: normal shape (Kolmogorov-Smirnov)", *_normal_shape(z.flatten())),
        correlation_check("noise: correlation of neighbouring coordinates", z[:, 1:], z[:, :-1]),
        std_check("noise: one step's sum over coordinates, standard deviation", silent.sum(1) / math.sqrt(size), std),
    ]
    untouched = ~np.isnan(others).any(0)
    checks.append(correlation_check("noise: correlation of two tensors", z[:, untouched], others[:, untouched] / std))
    if steps > 1:
        checks += [
            correlation_check("noise: correlation of consecutive steps", z[1:], z[:-1]),
            _largest_correlation("noise: largest correlation of any two steps", z),
            std_check("noise: sum over all steps, standard deviation", silent.sum(0) / math.sqrt(steps), std),
        ]
    return checks


def _normal_shape(z: np.ndarray) -> tuple[float, float, float]:
    result = stats.kstest(z[:20_000], "norm")
    return result.statistic, 0.0, result.pvalue


def correlation_check(name: str, first: np.ndarray, second: np.ndarray) -> Check:
    return z_check(name, float((first * second).mean()), 0.0, 1 / math.sqrt(first.size))


def _largest_correlation(name: str, z: np.ndarray) -> Check:
    """Of all pairs of rows; Pearson's r of independent normal values follows a t distribution. Bonferroni over the
    pairs."""
    rows, size = z.shape
    with np.errstate(invalid="ignore", divide="ignore"):  # constant rows: NaN, which fails
        r = np.corrcoef(z)[np.triu_indices(rows, 1)]
        worst = float(np.abs(r).max())
        statistic = worst * math.sqrt((size - 2) / np.maximum(1 - worst**2, 1e-30))
    return random_check(name, worst, 0.0, float(np.minimum(1.0, 2 * len(r) * stats.t.sf(statistic, size - 2))))


def sampler_checks(watch: Watch, declared: Declared, visible: np.ndarray) -> list[Check]:
    """Poisson sampling has one rate, and the dispersion of independent coins both over steps and over records;
    shuffled epochs and batches of one size do not.

    Args:
        visible (`np.ndarray`): Numbers of the records that are there.
    """
    mechanism, steps = declared.row.mechanism, declared.row.steps
    q, turns = mechanism.sampling_probability, steps // mechanism.num_groups
    counts = watch.inclusions(int(visible.max()) + 1)[visible]
    twice = sum(len(sample) - len(np.unique(sample)) for sample in watch.samples)
    batch_sizes, present = np.array(watch.batch_sizes), np.arange(declared.num_records)
    if mechanism.exact:  # samples are filled up with blanks: only who is seen tells
        batch_sizes, present = np.array([len(sample) for sample in watch.samples]), visible
    groups = groups_of_rows(declared.num_records, mechanism)
    turn = np.arange(len(watch.samples)) % mechanism.num_groups
    strangers = sum(int((groups[sample] != group).sum()) for group, sample in zip(turn, watch.samples, strict=True))
    population = np.bincount(groups[present], minlength=mechanism.num_groups)[turn]  # whose turn it is, at each step
    checks = [
        exact_check("sampler: steps", len(watch.samples), steps),
        exact_check("sampler: records drawn twice in a step", twice, 0),
        exact_check("sampler: records out of their group's turn", strangers, 0),
    ]
    if q == 1:
        others = (batch_sizes != population).sum()
        return checks + [
            exact_check("sampler: batches that are not all whose turn it is", others, 0),
            exact_check("sampler: fewest steps of a record", counts.min(), turns),
        ]
    total, trials = int(counts.sum()), turns * len(visible)
    checks.append(random_check("sampler: rate", total / trials, q, binomial_p_value(total, trials, q)))
    if not mechanism.by_coins:
        return checks
    return [
        *checks,
        _dispersion("sampler: dispersion of batch sizes", batch_sizes, population, q),
        _dispersion("sampler: dispersion of records' counts", counts, turns, q),
    ]


def binomial_p_value(hits: int, trials: int, rate: float) -> float:
    """Both sides."""
    return float(2 * min(stats.binom.cdf(hits, trials, rate), stats.binom.sf(hits - 1, trials, rate)))


def _dispersion(name: str, counts: np.ndarray, trials: np.ndarray | int, rate: float) -> Check:
    """Index of dispersion of binomial counts, 1 if they are. Its distribution is taken for a gamma distribution with
    the right mean and variance."""
    trials = np.broadcast_to(trials, counts.shape)
    counts, trials = counts[trials > 0], trials[trials > 0]
    variance = trials * rate * (1 - rate)
    excess = float(((1 - 6 * rate * (1 - rate)) / variance).mean())  # kurtosis beyond the normal distribution's
    statistic = float((np.square(counts - trials * rate) / variance).sum())
    law = stats.gamma(len(counts) / (2 + excess), scale=2 + excess)
    return random_check(name, statistic / len(counts), 1.0, 2 * min(law.cdf(statistic), law.sf(statistic)))


def score_checks(scores: np.ndarray, taken: np.ndarray, turns: int, declared: Declared) -> list[Check]:
    """Sums over T turns of each canary's noisy gradient, times the normaliser: T q C on average for canaries that took
    part and 0 for the others, with the noise's variance T (sigma C)^2 and the coins' T q (1 - q) C^2.

    Args:
        scores (`np.ndarray`, shape `[m]`), taken (`np.ndarray` of bool, shape `[m]`).
    """
    q, clip_norm = declared.row.sampling_probability, declared.max_grad_norm
    mean, noise = turns * q * clip_norm, math.sqrt(turns) * declared.std
    both = math.sqrt(noise**2 + turns * q * (1 - q) * clip_norm**2)
    inside, outside = scores[taken], scores[~taken]
    return [
        z_check("scores: mean with the record", inside.mean(), mean, both / math.sqrt(len(inside))),
        z_check("scores: mean without it", outside.mean(), 0.0, noise / math.sqrt(len(outside))),
        std_check("scores: standard deviation with the record", inside - mean, both),
        std_check("scores: standard deviation without it", outside, noise),
    ]


def contribution_checks(scores: np.ndarray, watch: Watch, clip_norm: float) -> list[Check]:
    """Without noise, each step that a record took part in adds exactly C, however loud the record is, however large
    the batch: a sum of clipped gradients over a constant."""
    counts, steps = watch.inclusions(len(scores))[: len(scores)], scores / clip_norm
    there = counts > 0
    if not there.any():  # where steps expect few records, all canaries may be left out; other checks try the clip norm
        return []
    ratios = steps[there] / counts[there]
    return [
        exact_check("clipping: smallest contribution to a step, in C", ratios.min(), 1.0, ROUNDING),
        exact_check("clipping: largest contribution to a step, in C", ratios.max(), 1.0, ROUNDING),
        exact_check(
            "clipping: contribution of an absent record, in C", np.abs(steps[~there]).max(initial=0), 0.0, ROUNDING
        ),
    ]


@dataclass(frozen=True)
class Outcome:
    """One audited run.

    Args:
        noise_scale (`float`): 1 for the honest run.
        checks (`list[Check]`): What was looked at.
        formal_bound (`float`, *optional*), gaussian_estimate (`float`): Lower bounds on epsilon, see `bounds.py`; the
            formal one needs many canaries in one run. It holds at 95 %, so that an honest run may exceed its claim by
            chance.
        claimed_epsilon (`float`): What the estimate must not exceed.
        formal_p_value (`float`, *optional*): Probability of so many right guesses under the claim; this rejects.
    """

    noise_scale: float
    checks: list[Check]
    formal_bound: float | None
    gaussian_estimate: float
    claimed_epsilon: float
    formal_p_value: float | None = None

    @property
    def failures(self) -> list[str]:
        """Why this run is rejected; empty if it is not."""
        failed = [check.name for check in self.checks if not check.passed]
        if self.formal_p_value is not None and not self.formal_p_value >= SIGNIFICANCE:
            failed.append("formal bound above the claim")
        if not self.gaussian_estimate <= self.claimed_epsilon:
            failed.append("Gaussian estimate above the claim")
        return failed

    @property
    def faults(self) -> list[str]:
        """Failed checks that do not depend on the noise: they speak against the code also where the noise was broken
        on purpose."""
        return [check.name for check in self.checks if not check.passed and check.name.startswith(WITHOUT_NOISE)]

    @property
    def noise_noticed(self) -> bool:
        """Whether a check of noise or of scores fails, as it must where the noise is broken."""
        return any(not check.passed and not check.name.startswith(WITHOUT_NOISE) for check in self.checks)


def judge(watch: Watch, declared: Declared, taken: np.ndarray, visible: np.ndarray, noise_scale: float) -> Outcome:
    """All of the above on one run of DP-SGD.

    Args:
        taken (`np.ndarray` of bool, shape `[m]`): Whether each canary's coin let it take part.
        visible (`np.ndarray`): Numbers of all records that are there.
    """
    canaries, silent = (np.array(part).reshape(-1, len(taken)) for part in (watch.canaries, watch.silent))
    mechanism, asked = declared.row.mechanism, {float(query["normaliser"]) for query in watch.queries}
    scores, turns = turns_of(canaries, mechanism).sum(0), scored_turns(declared.row.steps, mechanism)
    untouched = np.where(taken, np.nan, whitened(canaries, mechanism))
    checks = [
        exact_check("divisor: smallest asked for", min(asked, default=0), declared.row.facts["normaliser"]),
        exact_check("divisor: largest asked for", max(asked, default=0), declared.row.facts["normaliser"]),
        *sampler_checks(watch, declared, visible),
    ]
    if noise_scale == 0:
        checks += contribution_checks(canaries.sum(0), watch, declared.max_grad_norm)
    checks += noise_checks(whitened(silent, mechanism), untouched, declared.std)
    checks += score_checks(scores, taken, turns, declared)
    threshold = turns * declared.row.sampling_probability * declared.max_grad_norm / 2
    fair = slice(NUM_FIXED_COINS, None)  # the theorem is about fair coins
    guesses = (len(scores[fair]), *guess_coins(scores[fair], taken[fair]))
    return Outcome(
        noise_scale,
        checks,
        one_run_epsilon(*guesses, declared.delta, FORMAL_CONFIDENCE),
        gaussian_estimate(scores[taken], scores[~taken], threshold, declared.delta, ESTIMATE_CONFIDENCE),
        declared.epsilon,
        one_run_p_value(declared.epsilon, *guesses, declared.delta),
    )
