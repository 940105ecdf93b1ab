# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The effect of correlated noise on the weights, and the coefficients that minimise it. Public numbers in, public
numbers out. No torch."""

import functools
import math
from dataclasses import dataclass

import numpy as np


MOST_ENTRIES = 250_000  # in a matrix during the search for coefficients; 2 MB
FEWEST_COLUMNS = 8
MOST_ITERATIONS = 100


@dataclass(frozen=True)
class Workload:
    """The sums into which noise goes: sums over steps, weighted by the learning rate, and their moving average.

    Errors in the current weights and in the averaged weights count equally, after each step. Adam is approximated by
    plain gradient descent.

    Args:
        steps (`int`): Number of steps T.
        lr_scheduler (`str`), lr_warmup_steps (`int`): Schedule of the learning rate, as `--lr_scheduler` names it.
        ema_decay (`float`): Decay of the averaged weights, in [0, 1), with the warm-up of Diffusers' `EMAModel`.
    """

    steps: int
    lr_scheduler: str = "constant"
    lr_warmup_steps: int = 0
    ema_decay: float = 0.0

    def learning_rates(self) -> np.ndarray:
        """Returns the learning rate of each step relative to the largest, float64 of shape `[T]`."""
        step, warm_up = np.arange(self.steps), self.lr_warmup_steps
        rising = np.minimum(1.0, step / max(1, warm_up)) if warm_up else np.ones(self.steps)
        left = np.clip((self.steps - step) / max(1, self.steps - warm_up), 0.0, 1.0)
        falling = {"linear": left, "cosine": 0.5 * (1 - np.cos(math.pi * left))}
        return rising * falling.get(self.lr_scheduler, 1.0)

    def decays(self) -> np.ndarray:
        """Returns the decay of the moving average at each step, float64 of shape `[T]`; the first step replaces it."""
        step = np.arange(self.steps)
        return np.where(step == 0, 0.0, np.minimum(self.ema_decay, (1 + step) / (10 + step)))


def square_root_coefficients(bands: int) -> np.ndarray:
    """Computes the first coefficients of the square root of the matrix of prefix sums, scaled to L2 norm 1.

    They are `(-1)^k binom(-1/2, k)` (Fichtenberger, Henzinger and Upadhyay 2023, arXiv 2202.11205, Section 3).

    Args:
        bands (`int`): Number b of coefficients, at least 1.

    Returns:
        `np.ndarray` of float64, shape `[b]`.
    """
    k = np.arange(1, bands)
    c = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return c / np.linalg.norm(c)


@functools.cache
def best_coefficients(bands: int, workload: Workload) -> tuple[float, ...]:
    """Minimises `root_mean_square_error` by L-BFGS from the square root's coefficients; never returns worse ones.

    Args:
        bands (`int`): Number b of coefficients, at least 1.
        workload (`Workload`): Sums into which the noise goes.

    Returns:
        `tuple[float, ...]`: Coefficients c_0 > 0 to c_{b-1}, of L2 norm 1.
    """
    from scipy.optimize import minimize  # takes a second to load, and only some runs need it

    start = square_root_coefficients(bands)
    if bands == 1:
        return (1.0,)
    columns = _columns(workload.steps, max(FEWEST_COLUMNS, MOST_ENTRIES // workload.steps))

    def objective(others: np.ndarray) -> tuple[float, np.ndarray]:
        c = np.concatenate([[1.0], others])
        with np.errstate(over="ignore", invalid="ignore"):
            error, slope = _mean_square(c, workload, columns)
        if not math.isfinite(error) or not np.isfinite(slope).all():
            return 1e6, np.zeros_like(others)  # the coefficients have no stable inverse
        square = float(c @ c)
        return math.log(error * square), (slope / error + 2 * c / square)[1:]

    found = minimize(
        objective, start[1:] / start[0], jac=True, method="L-BFGS-B", options={"maxiter": MOST_ITERATIONS}
    )
    c = np.concatenate([[1.0], found.x])
    c /= np.linalg.norm(c)
    best = min((c, start), key=lambda each: root_mean_square_error(tuple(each), workload))
    return tuple(float(value) for value in best)


def noise_of_a_step(coefficients: tuple[float, ...]) -> float:
    """Computes the standard deviation of one step's noise in a long block, relative to z: the L2 norm of a row of
    C^-1."""
    from scipy.signal import lfilter

    impulse = np.zeros(100 * len(coefficients))
    impulse[0] = 1.0
    return float(np.linalg.norm(lfilter([1.0], coefficients, impulse)))


def root_mean_square_error(coefficients: tuple[float, ...], workload: Workload) -> float:
    """Computes how far the noise moves one weight: root mean square over the steps, in units of the standard deviation
    of z times the largest learning rate. Independent noise in prefix sums gives `sqrt((T + 1) / 2)`.

    Args:
        coefficients (`tuple[float, ...]`): Coefficients c_0 to c_{b-1} of norm 1; `(1.0,)` for independent noise.
        workload (`Workload`): Sums into which the noise goes. Exact up to a few thousand steps; beyond, estimated from
            a few hundred evenly spaced steps.
    """
    columns = _columns(workload.steps, max(FEWEST_COLUMNS, 40 * MOST_ENTRIES // workload.steps))
    return math.sqrt(_mean_square(np.array(coefficients), workload, columns)[0])


def _columns(steps: int, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Selects the steps whose noise is followed, with the number of steps that each represents, in small parts."""
    ends = np.linspace(0, steps, min(steps, most) + 1).round().astype(int)
    middles, weights = (ends[:-1] + ends[1:] - 1) // 2, np.diff(ends).astype(float)
    parts = min(len(middles), max(1, len(middles) * steps // MOST_ENTRIES))
    return list(zip(np.array_split(middles, parts), np.array_split(weights, parts), strict=True))


def _mean_square(
    c: np.ndarray, workload: Workload, columns: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[float, np.ndarray]:
    """Computes the mean square error for `z ~ N(0, I)`, and its gradient with respect to c, shape `[b]`.

    Column j of `A C^-1` is `x_t = sum_{s=j}^t l_s d_{s-j}`, where d is the inverse series of c; the average is
    `e_t = a_t e_{t-1} + (1 - a_t) x_t`.
    """
    from scipy.linalg import solve_banded
    from scipy.signal import lfilter

    steps, rates, decays = workload.steps, workload.learning_rates(), workload.decays()
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    d = lfilter([1.0], c, impulse)
    forwards = np.stack([np.ones(steps), np.append(-decays[1:], 0.0)])
    backwards = np.stack([np.append(0.0, -decays[1:]), np.ones(steps)])
    error, by_d = 0.0, np.zeros(steps)
    for starts, weights in columns:
        lag = np.arange(steps)[:, None] - starts
        before = lag < 0
        lag[before] = 0
        x = np.cumsum(np.where(before, 0.0, rates[:, None] * d[lag]), axis=0)
        e = solve_banded((1, 0), forwards, (1 - decays)[:, None] * x, check_finite=False)
        error += float((weights * (np.square(x) + np.square(e))).sum())
        by_x = x + (1 - decays)[:, None] * solve_banded((0, 1), backwards, e, check_finite=False)
        by_x *= 2 * weights
        by_y = np.where(before, 0.0, rates[:, None] * np.cumsum(by_x[::-1], axis=0)[::-1])
        by_d += np.bincount(lag.ravel(), weights=by_y.ravel(), minlength=steps)
    twice = lfilter([1.0], c, d)  # the derivative of d with respect to c_k is minus this, shifted by k steps
    slope = np.array([-by_d[k:] @ twice[: steps - k] for k in range(len(c))])
    return error / (2 * steps), slope / (2 * steps)
