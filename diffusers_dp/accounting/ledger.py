# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger: every query to the sensitive images, and their total cost.

Each run has one `PrivacyLedger`. A query (a `LedgerRow`) is written and synced to disk *before* its noise is drawn,
a step of DP-SGD before an image is read, and both are refused if the total would exceed the target. Reserved steps
count as spent, executed or not; a crash can therefore waste budget but never hide any.

Neighbouring data sets differ in **one image that is zeroed out**; the number of images and the label set are public.
`epsilon.py` computes the numbers. Nothing here loads torch.
"""

import math
import numbers
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BudgetExceeded, IntegrityError, UsageError
from ..files.untrusted_values import plain_facts
from ..mechanisms import Everyone, Mechanism
from ..mechanisms.mechanism import finite_number
from ..verify import ACCOUNTANTS, FORMAT
from . import epsilon as accounting
from .epsilon import Composition, compose
from .ledger_file import Bound, LedgerFile, ReleaseRows, bounds_of, check_dataset_id, facts_of
from .ledger_row import LedgerRow


_ROUNDING = 1e-9


class PrivacyLedger:
    """Records queries, computes their total cost, and grants or refuses the next one.

    Args:
        path (`Path`, *optional*): `private/ledger.jsonl`. `None` keeps the ledger in memory (planning). An existing
            file is continued: its reservations stay spent. The first reservation creates a new file.
        target_epsilon, target_delta (`float`): Privacy budget.
        num_images (`int`): Declared, public number of images (or of units, if another unit is protected).
        accountant (`str`): `"pld"`, `"rdp"` or `"prv"`: the accountant that gates and calibrates.
        public_facts (`dict`, *optional*): Other public facts that must not change during a run.
        unit_of_privacy (`str`): `"image"`, or the name of another unit that is zeroed out as a whole.
        dataset_id (`str`, *optional*): Name of the data set; its releases share the file at `path`, and their costs
            add up.
        dataset_epsilon (`float`, *optional*): Bound on the sum over all releases, at this release's delta, by PLD. It
            binds later releases at this delta, as the bounds of earlier releases bind this one at theirs.
        release_id (`str`, *optional*): Name of this release in the shared file.
        others (sequence of `ReleaseRows`): Other releases, for a ledger in memory.
        has_guarantee (`bool`): False of a run with `--target_epsilon inf`, for comparison with the papers' rows at
            epsilon = infinity. Such a ledger grants every row without noise and no other; its epsilon is infinite. It
            has no receipt, so the run cannot be released.

    Attributes:
        dataset_bounds (list of `Bound`): Bounds promised to releases on their sum; no bound implies another.
        dataset_epsilon (`float`, *optional*): Smallest of these bounds that holds at this release's delta.
        set_aside (list of `LedgerRow`): Later queries, for which `calibrate` and `affordable_steps` keep budget.
        after_first_row (`Callable`, *optional*): Callback once the first row of this release is on disk.

    Raises:
        UsageError: A value is outside its range, or another process writes to the data set's ledger.
        IntegrityError: The file is damaged, edited, or was written for another budget or other public facts.
    """

    def __init__(
        self, path: Path | str | None, *, target_epsilon: float, target_delta: float, num_images: int,
        accountant: str = "pld", public_facts: dict | None = None, unit_of_privacy: str = "image",
        dataset_id: str | None = None, dataset_epsilon: float | None = None, release_id: str | None = None,
        others: Sequence[ReleaseRows] = (), has_guarantee: bool = True,
    ) -> None:  # fmt: skip
        self.path = None if path is None else Path(path)
        self.has_guarantee = has_guarantee
        self.target_epsilon = finite_number(target_epsilon, field="target_epsilon") if has_guarantee else math.inf
        if not self.target_epsilon > 0:
            raise UsageError(f"must be above 0, not {target_epsilon}.", field="target_epsilon")
        self.target_delta = finite_number(target_delta, field="target_delta")
        if not 0 < self.target_delta < 1:
            raise UsageError(f"must lie strictly between 0 and 1, not {target_delta}.", field="target_delta")
        if not isinstance(num_images, numbers.Integral) or num_images < 1:
            raise UsageError(f"must be a whole number of at least 1, not {num_images!r}.", field="num_train_images")
        if dataset_epsilon is not None and not finite_number(dataset_epsilon, field="dataset_epsilon") > 0:
            raise UsageError(f"must be above 0, not {dataset_epsilon}.", field="dataset_epsilon")
        if dataset_id is not None:
            check_dataset_id(dataset_id)
        self.num_images: int = int(num_images)
        if accountant not in ACCOUNTANTS:
            raise UsageError(f"must be one of {', '.join(ACCOUNTANTS)}, not {accountant!r}.", field="accountant")
        self.accountant: str = accountant
        self.header: dict[str, Any] = {
            "format": FORMAT,
            "kind": "header",
            "target_epsilon": self.target_epsilon if self.has_guarantee else str(self.target_epsilon),
            "target_delta": self.target_delta,
            "adjacency": "zero_out",
            "unit_of_privacy": unit_of_privacy,
            "num_images": self.num_images,
            "accountant": self.accountant,
            "public_facts": plain_facts(public_facts or {}, "public_facts"),
            "dataset_id": dataset_id,
            "dataset_epsilon": dataset_epsilon,
            "release_id": release_id,
        }
        self._file: LedgerFile = LedgerFile(self.path, self.header, others)
        # A bound promised to any release of the data set binds all, at the delta of the promise.
        self.dataset_bounds: list[Bound] = bounds_of([self.header, *(r.header for r in self._file.others)])
        here = [bound.epsilon for bound in self.dataset_bounds if bound.delta <= self.target_delta]
        self.dataset_epsilon: float | None = min(here, default=None)
        self.set_aside: list[LedgerRow] = []
        self.after_first_row: Callable[[], None] | None = None
        self._open: list[int] = []  # reservations of this process that `take_step` may draw on
        self._affordable: Composition = ()  # largest composition known to meet the target

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per reservation, in order; copies."""
        return list(map(facts_of, self._file.own.rows))

    @property
    def asked(self) -> list[LedgerRow]:
        """The same rows as values, with the steps that were reserved."""
        return list(self._file.own.asked)

    @property
    def prior_releases(self) -> list[dict[str, Any]]:
        """The other releases of the data set, as the receipt lists them."""
        return [
            {
                **{name: release.header[name] for name in ("unit_of_privacy", "num_images")},
                "events": [
                    {key: value for key, value in facts_of(row).items() if key != "state"} for row in release.rows
                ],
            }
            for release in self._file.others
        ]

    def close(self) -> None:
        """Lets other processes write to the data set's ledger."""
        self._file.close()

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
        return accounting.pld_interval(self._composition(), self.target_epsilon, self.target_delta)

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
        sigma = accounting.calibrate(
            before, mechanism, steps, self.target_epsilon, self.target_delta, self.accountant, spent, at_least
        )

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
                found = accounting.calibrate(together, mechanism, steps, *bound, "pld", spent, at_least)
                sigma = max(sigma, found)
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
        return accounting.noise_for_share(share, row.mechanism, row.steps, self.target_epsilon, self.target_delta)

    # Asking.

    def reserve(self, row: LedgerRow) -> int:
        """Writes a query to disk, durably, and returns its id. Only then may it be answered.

        Raises:
            BudgetExceeded: The total would exceed the target; nothing was written.
            UsageError: The release has a stream of another mechanism.
            IntegrityError: Somebody else changed the file since this ledger's last write.
            OSError: The file cannot be written or synced; nothing is granted.
        """
        entry = self.refuse_unaffordable(row)
        self._file.append(entry, row)
        self._open.append(entry["id"])
        if len(self._file.own.rows) == 1 and self.after_first_row is not None:
            self.after_first_row()
        return entry["id"]

    def refuse_unaffordable(self, row: LedgerRow) -> dict[str, Any]:
        """Raises what `reserve` would raise about the row, and writes nothing; returns the row as JSON."""
        entry = self._entry(row)
        stream = self._file.own.stream if row.mechanism.one_stream else None
        if stream is not None and (stream.mechanism, stream.facts) != (row.mechanism, row.facts):
            raise UsageError(
                f"{row.name!r} has another mechanism than earlier steps of this release (groups, noise or rate): use "
                "the same."
            )
        if problem := self.over_budget([row]):
            raise BudgetExceeded(f"{row.steps} step(s) of {row.name!r} {problem}; the query was not asked.")
        return entry

    def over_budget(self, rows: Sequence[LedgerRow]) -> str:
        """What would become of epsilon if all of these rows were asked, too, in words; empty where they fit."""
        composition = self._composition(rows)
        if self._affords(composition):
            return ""
        broken = self._broken_bound(composition)
        if self._within(composition) and broken is not None:
            ours = broken == (self.header["dataset_epsilon"], self.target_delta)
            whose = "" if ours else ", promised to another release"
            total = self.epsilon_of_all_releases(extra=rows, delta=broken.delta)
            return (
                f"would bring epsilon of all releases of this data set to {total:.6g} at delta {broken.delta:g}, "
                f"over --dataset_epsilon {broken.epsilon:g}{whose}"
            )
        return (
            f"would bring epsilon to {self.epsilon(extra=rows):.6g}, over the target {self.target_epsilon:g} "
            f"({self.epsilon():.6g} is spent)"
        )

    def executed(self, reservation: int, steps: int) -> None:
        """Records that a reservation ended after `steps` of its steps. Unused steps stay spent."""
        entry = self._file.own.rows[reservation]
        if not entry["steps_executed"] <= steps <= entry["steps_reserved"]:
            raise IntegrityError(
                f"Reservation {reservation} ({entry['stage']!r}) cannot have executed {steps} steps: "
                f"{entry['steps_executed']} were executed before and {entry['steps_reserved']} are reserved."
            )
        entry.update(steps_executed=int(steps), state="executed")
        self._open = [number for number in self._open if number != reservation]
        self._file.rewrite()

    def take_step(self, row: LedgerRow, *, reserve_steps: int = 1) -> int:
        """Takes one reserved step of a repeated query.

        Uses the newest open reservation of *this process* for the same query (all fields but `steps`), and reserves
        `reserve_steps` more when none is left. Never uses reservations of an earlier process, because nobody knows
        which of their steps were executed. The step counts as executed from here on, in memory; `flush_executed`
        writes the count to disk.

        Returns:
            `int`: Position of the step in its reservation; of a mechanism with a stream, among all steps with it that
            the release ever reserved, lost ones included.
        """
        asked = self._file.own.asked
        number = next((n for n in reversed(self._open) if asked[n].same_query(row)), None)
        if number is None:
            number = self.reserve(replace(row, steps=reserve_steps))
        entry = self._file.own.rows[number]
        position = int(entry.get("first_step", 0) + entry["steps_executed"])
        entry["steps_executed"] += 1
        if entry["steps_executed"] == entry["steps_reserved"]:
            self.executed(number, entry["steps_executed"])
        return position

    def flush_executed(self) -> None:
        """Writes the step counts of open reservations to disk (at checkpoints, and when a run ends)."""
        if any(self._file.own.rows[number]["steps_executed"] for number in self._open):
            self._file.rewrite()

    # Counting.

    def _check_noise(self, row: LedgerRow) -> None:
        """Checks each row before it is written and before it is counted."""
        if not row.mechanism.has_noise and self.has_guarantee:
            raise UsageError(
                f"{row.name!r} is asked without noise, which no budget can pay for: give a noise multiplier."
            )
        if row.mechanism.has_noise and not self.has_guarantee:
            raise UsageError(f"{row.name!r} is asked with noise, but runs with --target_epsilon inf add no noise.")

    def _composition(self, extra: Sequence[LedgerRow] = ()) -> Composition:
        for row in extra:
            self._check_noise(row)
        return compose([*self._file.own.asked, *extra])

    def _cost(self, composition: Composition, accountant: str | None = None) -> float:
        if not self.has_guarantee:
            return math.inf
        return accounting.cost(composition, self.target_epsilon, self.target_delta, accountant or self.accountant)

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
        cost = accounting.cost(composition, self.target_epsilon, self.target_delta, self.accountant, refine=False)
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
