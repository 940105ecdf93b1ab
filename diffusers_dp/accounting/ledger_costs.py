# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the rows of a ledger cost, and the noise that a further query needs. Nothing here writes or grants, and
nothing loads torch."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from ..mechanisms import Everyone, Mechanism
from ..words import ACCOUNTANTS
from . import epsilon as accounting
from .epsilon import Composition, compose
from .ledger_file import Bound, LedgerFile
from .ledger_row import LedgerRow


_ROUNDING = 1e-9


class LedgerCosts:
    """The arithmetic of a `PrivacyLedger`, which sets these attributes."""

    target_epsilon: float
    target_delta: float
    has_guarantee: bool
    num_images: int
    accountant: str
    dataset_bounds: list[Bound]
    set_aside: list[LedgerRow]
    _file: LedgerFile
    _affordable: Composition

    # Costs.

    def epsilon(self, accountant: str | None = None, *, extra: Sequence[LedgerRow] = ()) -> float:
        """Computes epsilon at the target delta over all reserved steps, and over `extra` rows not reserved yet.

        See `accounting.cost` for the resolution of PLD.
        """
        return self._cost(self._composition(extra), accountant)

    def epsilon_of_all_releases(self, *, extra: Sequence[LedgerRow] = (), delta: float | None = None) -> float:
        """Computes epsilon of all releases of the data set together, at the target delta or another one.

        Uses PLD, the only accountant that supports every query.
        """
        if not self.has_guarantee:
            return math.inf
        together = self._with_others(self._composition(extra))
        return accounting.cost(together, self.sum_target, self.target_delta if delta is None else delta, "pld")

    def tightest_bound(self, *, extra: Sequence[LedgerRow] = ()) -> Bound:
        """Returns the bound in `dataset_bounds` with the smallest unused share of its epsilon. There must be one."""

        def used(bound: Bound) -> float:
            return self.epsilon_of_all_releases(extra=extra, delta=bound.delta) / bound.epsilon

        return max(self.dataset_bounds, key=used)

    def pld_interval(self, *, all_releases: bool = False) -> float:
        """Returns PLD's interval of `epsilon("pld")`, or of `epsilon_of_all_releases`; see
        `accounting.pld_interval`."""
        if all_releases:
            return accounting.pld_interval(self._with_others(self._composition()), self.sum_target, self.target_delta)
        return accounting.pld_interval(self._composition(), *self._target)

    @property
    def sum_target(self) -> float:
        """The smallest of all bounds; it sets the resolution at which releases are summed."""
        return min([self.target_epsilon, *(bound.epsilon for bound in self.dataset_bounds)])

    def epsilon_by_stage(self) -> list[tuple[str, float]]:
        """Computes the cumulative epsilon after each stage, in order of asking."""
        asked = self._file.own.asked
        names = list(dict.fromkeys(row.name for row in asked))
        stages = []
        for last, name in enumerate(names):
            so_far = [row for row in asked if row.name in names[: last + 1]]
            stages.append((name, self._cost(compose(so_far))))
        return stages

    def budget_shares(self) -> dict[str, float]:
        """Computes each stage's share of the composed RDP, at the optimal order for the target delta.

        RDP is additive, so shares are too (FETA-Pro paper, Table 12). Steps of one mechanism are counted together.
        """
        shares: dict[str, float] = {}
        asked = self._file.own.asked
        if asked and self.has_guarantee:
            composition = self._composition()
            _, at = accounting.rdp_epsilon(composition, self.target_delta)
            total = accounting.rdp(composition)[at]
            for row in asked:
                together = [other for other in asked if other.mechanism == row.mechanism]
                spent = accounting.rdp(compose(together))[at] * row.steps / sum(other.steps for other in together)
                shares[row.name] = shares.get(row.name, 0.0) + spent / total
        return shares

    def affordable_steps(self, row: LedgerRow, at_most: int, *, beside: Sequence[LedgerRow] = ()) -> int:
        """Finds the largest n <= `at_most` such that all reserved rows, rows set aside (or else those `beside` it) and
        n steps of `row` meet the target."""
        others = beside or self.set_aside

        def too_dear(steps: int) -> bool:
            return not self._affords(self._composition([*others, replace(row, steps=steps)]))

        if at_most < 1 or not too_dear(at_most):  # most callers ask for a planned number, so try it first
            return max(at_most, 0)
        return bisect_left(range(1, at_most), True, key=too_dear)

    # Calibration of noise.

    def calibrate(self, mechanism: Mechanism, steps: int, *, at_least: float = 1e-2) -> float:
        """Finds the smallest noise multiplier for which the rows so far, rows set aside and `steps` more steps of a
        mechanism meet the target.

        Searches by bracketing and false position on the ledger's accountant. The result meets the target and is at
        most 1e-4 (relative) above the smallest one.

        Args:
            mechanism (`Mechanism`): Its own noise multiplier means nothing.
            steps (`int`): Number of steps.
            at_least (`float`): Smallest noise multiplier to return.

        Raises:
            UsageError: The rows so far use up the target, or one of `dataset_bounds`.
        """
        if not self.has_guarantee:
            return 0.0
        row = LedgerRow("the remaining steps", mechanism, steps)  # reports a wrong number of steps first
        spent = self.epsilon(extra=self.set_aside)
        if not spent < self.target_epsilon:
            raise UsageError(
                f"Earlier queries already cost epsilon {spent:.6g}, {spent - self.target_epsilon:.6g} over "
                f"--target_epsilon {self.target_epsilon:g}. No noise in the remaining steps can bring it below "
                f"{spent:.6g}: raise --target_epsilon above it, or the noise multipliers of those queries."
            )
        before = self._composition(self.set_aside)
        sigma = self._calibrate(before, row, Bound(*self._target), spent, at_least, self.accountant)

        def planned() -> Composition:
            return self._composition([*self.set_aside, replace(row, mechanism=mechanism.with_noise(sigma))])

        for bound in self.dataset_bounds:
            spent = self.epsilon_of_all_releases(extra=self.set_aside, delta=bound.delta)
            if not spent < bound.epsilon:
                raise UsageError(
                    f"The releases of this data set already cost epsilon {spent:.6g} at delta {bound.delta:g}, which "
                    f"uses up --dataset_epsilon {bound.epsilon:g} at delta {bound.delta:g} (a bound of one of them): "
                    "no further query can be asked."
                )
            if not self._within_bound(self._with_others(planned()), bound):
                together = self._with_others(before)
                sigma = max(sigma, self._calibrate(together, row, bound, spent, at_least, "pld"))
        self._affords(planned())  # caches the result
        return sigma

    def calibrate_gaussian(
        self, share: float, mechanism: Mechanism = Everyone(noise_multiplier=1.0), steps: int = 1
    ) -> float:
        """Finds the noise multiplier of a query that uses `share` of the whole budget.

        Shares are of composed RDP at one order because RDP is additive. Order and total are those of a plain Gaussian
        mechanism that just meets the target (`accounting.gaussian_budget`). In the published settings DP-SGD has the
        same order or its neighbour. Existing rows play no role; `budget_shares` computes the shares of a plan.

        Raises:
            UsageError: The share is not in (0, 1), or the target is too small for RDP at the known orders.
        """
        if not self.has_guarantee:
            return 0.0
        if not 0 < share < 1:
            raise UsageError(f"The share of the budget must lie strictly between 0 and 1, not {share}.")
        row = LedgerRow("the query", mechanism, steps)
        return accounting.noise_for_share(share, row.mechanism, row.steps, *self._target)

    # Counting.

    def _check_noise(self, row: LedgerRow) -> None:
        """Checks each row before it is written and before it is counted."""
        if not row.mechanism.has_noise and self.has_guarantee:
            raise UsageError(
                f"{row.name!r} is asked without noise, which no budget can pay for: give a noise multiplier."
            )
        if row.mechanism.has_noise and not self.has_guarantee:
            raise UsageError(f"{row.name!r} is asked with noise, but runs with --target_epsilon inf add no noise.")

    @property
    def _target(self) -> tuple[float, float]:
        return self.target_epsilon, self.target_delta

    def _composition(self, extra: Sequence[LedgerRow] = ()) -> Composition:
        for row in extra:
            self._check_noise(row)
        return compose([*self._file.own.asked, *extra])

    def _cost(self, composition: Composition, accountant: str | None = None) -> float:
        if not self.has_guarantee:
            return math.inf
        accountant = self.accountant if accountant is None else known_accountant(accountant)
        return accounting.cost(composition, *self._target, accountant)

    def _affords(self, composition: Composition) -> bool:
        # Fewer steps never cost more, so a training loop whose total was checked once needs no further computation.
        known = dict(self._affordable)
        if not self.has_guarantee or all(count <= known.get(event, 0) for event, count in composition):
            return True
        affordable = self._within(composition) and self._broken_bound(composition) is None
        if affordable:
            self._affordable = composition
        return affordable

    def _within(self, composition: Composition) -> bool:
        cost = accounting.cost(composition, *self._target, self.accountant, refine=False)
        return cost <= self.target_epsilon + _ROUNDING  # NaN: not affordable

    def _broken_bound(self, composition: Composition) -> Bound | None:
        """Returns the first of the data set's bounds that this composition and the other releases exceed together."""
        together = self._with_others(composition)
        return next((bound for bound in self.dataset_bounds if not self._within_bound(together, bound)), None)

    def _within_bound(self, together: Composition, bound: Bound) -> bool:
        cost = accounting.cost(together, self.sum_target, bound.delta, "pld", refine=False)
        return cost <= bound.epsilon + _ROUNDING

    def _with_others(self, composition: Composition) -> Composition:
        others = [part for release in self._file.others for part in compose(release.asked)]
        return accounting.merge([*composition, *others])

    def _calibrate(
        self, before: Composition, row: LedgerRow, bound: Bound, spent: float, at_least: float, accountant: str
    ) -> float:
        return accounting.calibrate(before, row.mechanism, row.steps, *bound, accountant, spent, at_least)

    def _entry(self, row: LedgerRow) -> dict[str, Any]:
        self._check_noise(row)
        own = self._file.own
        return {
            "id": len(own.rows),
            **row.entry,
            "dataset_size": self.num_images,
            "steps_reserved": row.steps,
            "steps_executed": 0,
            "state": "reserved",
            **({"first_step": own.next_step} if row.mechanism.one_stream else {}),
        }


def known_accountant(accountant: str) -> str:
    if accountant not in ACCOUNTANTS:
        raise UsageError(f"must be one of {', '.join(ACCOUNTANTS)}, not {accountant!r}.", field="accountant")
    return accountant
