# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an honest DP-SGD looks like from outside, as tests of hypotheses.

Each random check has a significance of 1e-5, and so has the formal bound. An audit of DP-SGD and three queries has at
most 45 of them: 12 of the honest run, 6 of the samplers of the two broken ones, 24 of the queries, 2 of the noise at
the door and the bound. The Gaussian estimate adds 2e-4 for each of the four mechanisms. So an honest implementation is
rejected in about one audit of 750 at most.

Runs of DP-SGD with canaries among records of noise: honest, with the noise off and with the noise halved, all else
the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from .bounds import gaussian_estimate, guess_coins, one_run_epsilon, one_run_p_value
from .canaries import FaultyNoise, Watch, WatchedImages, enough_steps, groups_of_rows, scored_turns, turns_of, whitened
from .stand_ins import (
    NOISE_SCALES,
    STAND_IN_SHAPE,
    audited_door,
    counting_ledger,
    stand_in,
    step_options,
    tagged_noise,
)


SIGNIFICANCE = 1e-5
FORMAL_CONFIDENCE = 0.95
ESTIMATE_CONFIDENCE = 1 - 1e-4  # of each of its two error rates
ROUNDING = 1e-3  # relative, of sums that have no noise
MOST_VALUES = 200_000  # of a tensor, from its start, whose correlations are looked at
FEWEST_VALUES = 30  # whose correlation says something
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


def noise_p_values(tensors: Mapping[str, np.ndarray], std: float) -> dict[str, float]:
    """p-values of independent `N(0, std^2)` draws: standard deviation of each tensor; correlation of neighbours in it,
    along each of its axes (the taps of a kernel are two of them) and from answer to answer; correlation of a tensor
    and the next.

    Args:
        tensors (`dict[str, np.ndarray]`): Noise alone, `[answers, ...]`.
        std (`float`): That each number should have.
    """
    found: dict[str, float] = {}
    flat: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        found[f"standard deviation of {name}"] = _number(std_check(name, values, std).p_value)
        values = values[:, : max(1, MOST_VALUES // max(1, values[0, :1].size))] if values.ndim > 1 else values
        for axis in range(values.ndim):
            first, second = (np.delete(values, end, axis) for end in (-1, 0))
            what = f"neighbours along axis {axis - 1} of" if axis else "answers,"
            found[f"correlation of {what} {name}"] = _p_value_of_correlation(first, second)
        flat[name] = values.reshape(len(values), -1)
    for (name, one), (other_name, other) in pairwise(flat.items()):
        size = min(one.shape[1], other.shape[1])
        found[f"correlation of {name} and {other_name}"] = _p_value_of_correlation(one[:, :size], other[:, :size])
    return found


def _p_value_of_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Of Pearson's r; 0 where one side is constant, 1 where there are too few numbers."""
    if first.size < FEWEST_VALUES:
        return 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        return _number(_p_value_of_r(np.corrcoef(first.ravel(), second.ravel())[0, 1], first.size))


def _p_value_of_r(r: float, size: int) -> float:
    """Pearson's r of independent normal values follows a t distribution."""
    return float(2 * stats.t.sf(abs(r) * np.sqrt((size - 2) / np.maximum(1 - r**2, 1e-30)), size - 2))


def _number(p_value: float | None) -> float:
    """What is no number is rejected."""
    return 0.0 if p_value is None or np.isnan(p_value) else float(p_value)


def worst_checks(prefix: str, p_values: dict[str, float]) -> list[Check]:
    """The least p-value of a standard deviation, and of a correlation, each corrected for their number
    (Bonferroni)."""
    checks = []
    for kind in ("standard deviation", "correlation"):
        own = {name: p for name, p in p_values.items() if name.startswith(kind)}
        worst = min(own, key=lambda name: own[name])
        checks.append(random_check(f"{prefix}: {worst}: p-value", own[worst], 1.0, min(1.0, own[worst] * len(own))))
    return checks


def noise_checks(untouched: np.ndarray, std: float) -> list[Check]:
    """The noise of coordinates that no record touches: right in size and shape, and drawn anew for every step and
    coordinate.

    Args:
        untouched (`np.ndarray`, shape `[T, n]`): Answers for them.
        std (`float`): sigma C.
    """
    z = untouched / std
    shape = stats.kstest(z.flatten()[:20_000], "norm")
    checks = worst_checks("noise", noise_p_values({"absent canaries": untouched}, std))
    checks.append(random_check("noise: normal shape (Kolmogorov-Smirnov)", shape.statistic, 0.0, shape.pvalue))
    return checks + ([_largest_correlation("noise: largest correlation of any two steps", z)] if len(z) > 1 else [])


def _largest_correlation(name: str, z: np.ndarray) -> Check:
    """Of all pairs of rows. Bonferroni over the pairs."""
    with np.errstate(invalid="ignore", divide="ignore"):  # constant rows: NaN, which fails
        r = np.corrcoef(z)[np.triu_indices(len(z), 1)]
        worst = float(np.abs(r).max())
        return random_check(name, worst, 0.0, float(np.minimum(1.0, len(r) * _p_value_of_r(worst, z.shape[1]))))


def sampler_checks(watch: Watch, row: LedgerRow, num_records: int, visible: np.ndarray) -> list[Check]:
    """Poisson sampling has one rate, and the dispersion of independent coins both over steps and over records;
    shuffled epochs and batches of one size do not.

    Args:
        visible (`np.ndarray`): Numbers of the records that are there.
    """
    mechanism, steps = row.mechanism, row.steps
    q, turns = mechanism.sampling_probability, steps // mechanism.num_groups
    counts = watch.inclusions(int(visible.max()) + 1)[visible]
    twice = sum(len(sample) - len(np.unique(sample)) for sample in watch.samples)
    batch_sizes, present = np.array(watch.batch_sizes), np.arange(num_records)
    if mechanism.exact:  # samples are filled up with blanks: only who is seen tells
        batch_sizes, present = np.array([len(sample) for sample in watch.samples]), visible
    groups = groups_of_rows(num_records, mechanism)
    turn = np.arange(len(watch.samples)) % mechanism.num_groups
    strangers = sum(int((groups[sample] != group).sum()) for group, sample in zip(turn, watch.samples, strict=True))
    population = np.bincount(groups[present], minlength=mechanism.num_groups)[turn]  # whose turn it is, at each step
    checks = [
        exact_check("sampler: steps", len(watch.samples), steps),
        exact_check("sampler: records drawn twice in a step", twice, 0),
        exact_check("sampler: records out of their group's turn", strangers, 0),
    ]
    total, trials = int(counts.sum()), turns * len(visible)
    checks.append(
        random_check("sampler: rate", total / trials, q, stats.binomtest(min(total, trials), trials, q).pvalue)
    )
    if q == 1 or not mechanism.by_coins:
        return checks
    return [
        *checks,
        _dispersion("sampler: dispersion of batch sizes", batch_sizes, population, q),
        _dispersion("sampler: dispersion of records' counts", counts, turns, q),
    ]


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


def score_checks(
    name: str, within: np.ndarray, without: np.ndarray, *, turns: int, rate: float, size: float, std: float
) -> list[Check]:
    """Sums over T turns along what one unit moves: T q C on average for those with the unit and 0 for the others, with
    the noise's variance T (sigma C)^2 and the coins' T q (1 - q) C^2.

    Args:
        within, without (`np.ndarray`, 1-d): Scores with the unit and without it.
        turns (`int`), rate (`float`), size (`float`), std (`float`): T, q, C and sigma C.
    """
    mean, noise = turns * rate * size, math.sqrt(turns) * std
    both = math.sqrt(noise**2 + turns * rate * (1 - rate) * size**2)
    return [
        z_check(f"{name}: mean with the record", within.mean(), mean, both / math.sqrt(len(within))),
        z_check(f"{name}: mean without it", without.mean(), 0.0, noise / math.sqrt(len(without))),
        std_check(f"{name}: standard deviation with the record", within - mean, both),
        std_check(f"{name}: standard deviation without it", without, noise),
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


def judge(
    watch: Watch, row: LedgerRow, num_records: int, epsilon: float, delta: float, taken: np.ndarray,
    visible: np.ndarray, noise_scale: float,
) -> Outcome:  # fmt: skip
    """All of the above on one run of DP-SGD.

    Args:
        row (`LedgerRow`): T steps, as they were asked; with groups, T is a multiple of their number.
        num_records (`int`): N of the audit.
        epsilon, delta (`float`): What T steps are said to cost.
        taken (`np.ndarray` of bool, shape `[m]`): Whether each canary's coin let it take part.
        visible (`np.ndarray`): Numbers of all records that are there.
    """
    canaries = np.array(watch.canaries).reshape(-1, len(taken))
    mechanism, rate, size = row.mechanism, row.sampling_probability, float(row.facts["clip_norm"])
    scores, turns = turns_of(canaries, mechanism).sum(0), scored_turns(row.steps, mechanism)
    std = row.noise_multiplier * size
    asked = {float(query["normaliser"]) for query in watch.queries}
    checks = [
        exact_check("divisor: others than the plan's", len(asked ^ {float(row.facts["normaliser"])}), 0),
        *sampler_checks(watch, row, num_records, visible),
    ]
    if noise_scale == 0:
        checks += contribution_checks(canaries.sum(0), watch, size)
    checks += noise_checks(whitened(canaries, mechanism)[:, ~taken], std)
    checks += score_checks("scores", scores[taken], scores[~taken], turns=turns, rate=rate, size=size, std=std)
    fair = slice(NUM_FIXED_COINS, None)  # the theorem is about fair coins
    guesses = (len(scores[fair]), *guess_coins(scores[fair], taken[fair]))
    return Outcome(
        noise_scale,
        checks,
        one_run_epsilon(*guesses, delta, FORMAL_CONFIDENCE),
        gaussian_estimate(scores[taken], scores[~taken], turns * rate * size / 2, delta, ESTIMATE_CONFIDENCE),
        epsilon,
        one_run_p_value(epsilon, *guesses, delta),
    )


RECORDS_PER_STEP = 300
FEWEST_RECORDS, MOST_RECORDS = 600, 2000
FEWEST_STEPS, MOST_STEPS = 60, 400
QUICK_STEPS, QUICK_STEPS_BROKEN = 200, 20
STEPS_PER_RECORD = 6  # that a record takes part in, on average


def size_of_audit(row: LedgerRow, quick: bool) -> tuple[int, list[int]]:
    """Records, and steps of the three runs: enough that a record takes part in six, as far as that is quick."""
    records = math.ceil(RECORDS_PER_STEP / row.mechanism.sample_rate)
    steps = math.ceil(STEPS_PER_RECORD / row.mechanism.sample_rate)
    steps = max(FEWEST_STEPS, min(MOST_STEPS, steps))
    broken = steps
    if quick:  # noise of the wrong size shows in any number of steps
        steps, broken = min(steps, QUICK_STEPS), QUICK_STEPS_BROKEN
    steps, broken = (enough_steps(number, row.mechanism) for number in (steps, broken))
    return max(FEWEST_RECORDS, min(MOST_RECORDS, records)), [steps, broken, broken]


def stand_in_runs(row: LedgerRow, delta: float, *, quick: bool = False) -> list[Outcome]:
    """Those of a stand-in's model on small images. All three are held against what the honest run is said to cost."""
    num_records, lengths = size_of_audit(row, quick)
    physical = math.ceil(num_records * row.mechanism.sample_rate / 3)  # several to a step
    query = step_options(row, physical, reserve_steps=lengths[0])

    def train(door: WatchedImages, steps: int) -> None:
        audited = stand_in()
        for _ in range(steps):
            door.noisy_gradient(audited.model, audited.row_loss, **query)

    return canary_runs(
        row, num_records, num_records // 2, lengths, train,
        ledgers=[counting_ledger(num_records, delta) for _ in NOISE_SCALES],
        accountant=None if quick else "pld",
    )  # fmt: skip


def canary_runs(
    row: LedgerRow, num_records: int, num_canaries: int, lengths: list[int],
    train: Callable[[WatchedImages, int], None], *, ledgers: Sequence[PrivacyLedger], accountant: str | None = None,
    after_step: Callable[[], Any] = lambda: None, image_shape: tuple[int, ...] = STAND_IN_SHAPE,
    class_names: tuple[str, ...] | None = None, device: str = "cpu",
) -> list[Outcome]:  # fmt: skip
    """The three runs, see `checks.judge`.

    Args:
        row (`LedgerRow`): The step of the plan. The noise is that which `train` asks for.
        num_records, num_canaries (`int`): N of the audit, and how many of these are canaries.
        lengths (`list[int]`): Steps of each run.
        train (`Callable`): Asks a door for so many steps.
        ledgers (`Sequence[PrivacyLedger]`): Of each run; its epsilon, by `accountant`, is the claim.
    """
    taken, readable = flip_coins(num_records, num_canaries)
    images, labels = tagged_noise(num_records, image_shape, None), None
    if class_names is not None:
        labels = np.random.default_rng().integers(0, len(class_names), num_records)
    outcomes = []
    for noise_scale, steps, ledger in zip(NOISE_SCALES, lengths, ledgers, strict=True):
        watch = Watch(num_canaries)
        door = audited_door(
            images, labels, readable, generator=FaultyNoise(noise_scale), ledger=ledger, class_names=class_names,
            device=device, exact=row.mechanism.exact, kind=WatchedImages, watch=watch, after_step=after_step,
        )  # fmt: skip
        train(door, steps)
        sigma = watch.queries[-1]["mechanism"].noise_multiplier
        mechanism = row.mechanism.at(max_images_per_unit=None).with_noise(sigma)  # each record is a unit
        asked, claim = replace(row, mechanism=mechanism, steps=steps), ledger.epsilon(accountant)
        outcome = judge(
            watch, asked, num_records, claim, ledger.target_delta, taken, np.flatnonzero(readable), noise_scale
        )  # fmt: skip
        outcomes.append(replace(outcome, checks=[*ledger_checks(ledger, asked), *outcome.checks]))
    return outcomes


def flip_coins(num_records: int, num_canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """A fair coin for each canary but the first two, of records 0 to `num_canaries` - 1; the others are all there.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Whether each canary takes part, `[num_canaries]`, and whether each record
        does, `[num_records]`. Both sides have a canary at least.
    """
    taken = np.random.default_rng().random(num_canaries) < 0.5
    taken[:NUM_FIXED_COINS] = True, False  # so that neither side can be empty
    return taken, np.concatenate([taken, np.ones(num_records - num_canaries, dtype=bool)])


def ledger_checks(ledger: PrivacyLedger, asked: LedgerRow) -> list[Check]:
    """What was written down is what was asked."""
    rows = [row for row in ledger.rows if row["stage"] == asked.name]
    wrong = sum(row[name] != value for row in rows for name, value in asked.entry.items())
    return [
        exact_check("ledger: steps", sum(row["steps_executed"] for row in rows), asked.steps),
        exact_check("ledger: facts that differ from the query", wrong, 0),
    ]
