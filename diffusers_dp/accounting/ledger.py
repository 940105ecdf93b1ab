# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger: every question to the sensitive images, and their total cost.

Each run has one `PrivacyLedger`. A question (a `LedgerRow`) is written and synced to disk *before* it is asked, and
refused if the total would exceed the target. Reserved steps count as spent, executed or not; a crash can therefore
waste budget but never hide any.

Neighbouring data sets differ in **one image that is zeroed out**; the number of images and the label set are public.
`epsilon.py` computes the numbers. Nothing here loads torch.
"""

import json
import numbers
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BudgetExceeded, IntegrityError, UsageError
from ..words import ACCOUNTANTS
from . import epsilon as accounting
from .epsilon import Composition
from .ledger_file import (
    SCHEMA_VERSION,
    Bound,
    LedgerFile,
    ReleaseRows,
    banded_rows,
    bounds_of,
    check_dataset_id,
    facts_of,
    next_step,
    questions_of,
    same_stream,
)
from .ledger_row import BANDED, NON_PRIVATE, LedgerRow, finite_number, sampled_row


_ROUNDING = 1e-9
_IDENTITY = (
    "stage", "mechanism", "noise_multiplier", "sampling_probability", "truncated_batch_size", "query", "partition",
    "bands",
)  # fmt: skip


class PrivacyLedger:
    """Records questions, computes their total cost, and grants or refuses the next one.

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

    Attributes:
        dataset_bounds (list of `Bound`): Bounds promised to releases on their sum; no bound implies another.
        dataset_epsilon (`float`, *optional*): Smallest of these bounds that holds at this release's delta.
        set_aside (list of `LedgerRow`): Later questions, for which `calibrate` and `affordable_steps` keep budget.
        after_first_row (`Callable`, *optional*): Callback once the first row of this release is on disk.

    Raises:
        UsageError: A value is outside its range, or another process writes to the data set's ledger.
        IntegrityError: The file is damaged, edited, or was written for another budget or other public facts.
    """

    has_guarantee = True  # False in `unprotected_ledger.UnprotectedLedger`

    def __init__(
        self,
        path: Path | str | None,
        *,
        target_epsilon: float,
        target_delta: float,
        num_images: int,
        accountant: str = "pld",
        public_facts: dict | None = None,
        unit_of_privacy: str = "image",
        dataset_id: str | None = None,
        dataset_epsilon: float | None = None,
        release_id: str | None = None,
        others: Sequence[ReleaseRows] = (),
    ) -> None:
        self.path = None if path is None else Path(path)
        self.target_epsilon = self._checked_target(target_epsilon)
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
        self.accountant: str = _known(accountant)
        self.header: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "kind": "header",
            "target_epsilon": self.target_epsilon if self.has_guarantee else str(self.target_epsilon),
            "target_delta": self.target_delta,
            "adjacency": "zero_out",
            "unit_of_privacy": unit_of_privacy,
            "num_images": self.num_images,
            "accountant": self.accountant,
            "public_facts": _plain(public_facts or {}, "public_facts"),
            "dataset_id": dataset_id,
            "dataset_epsilon": dataset_epsilon,
            "release_id": release_id,
        }
        self._file: LedgerFile = LedgerFile(self.path, self.header, others)
        # A bound promised to any release of the data set binds all, at the delta of the promise.
        self.dataset_bounds: list[Bound] = bounds_of([self.header, *(r.header for r in self._file.others)])
        here = [bound.epsilon for bound in self.dataset_bounds if bound.delta <= self.target_delta]
        self.dataset_epsilon: float | None = min(here, default=None)
        self._rows: list[dict[str, Any]] = self._file.rows
        self.set_aside: list[LedgerRow] = []
        self.after_first_row: Callable[[], None] | None = None
        self._open: list[int] = []  # reservations of this process that `take_step` may draw on
        self._affordable: Composition = ()  # largest composition known to meet the target

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per reservation, in order; copies."""
        return list(map(facts_of, self._rows))

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

        Uses PLD, the only accountant that supports every question.
        """
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
        names = list(dict.fromkeys(row["stage"] for row in self._rows))
        stages = []
        for last, name in enumerate(names):
            so_far = [row for row in self._rows if row["stage"] in names[: last + 1]]
            stages.append((name, self._cost(accounting.merge(questions_of(so_far)))))
        return stages

    def budget_shares(self) -> dict[str, float]:
        """Computes each stage's share of the composed RDP, at the optimal order for the target delta.

        RDP is additive, so shares are too (FETA-Pro paper, Table 12). Truncated Poisson sampling, which RDP does not
        support, counts as plain Poisson sampling here.
        """
        shares: dict[str, float] = {}
        if self._rows:
            composition = accounting.untruncated(self._composition())
            _, at = accounting.rdp_epsilon(composition, self.target_delta)
            total = accounting.rdp(composition)[at]
            for row in self._rows:
                together, part = [row], 1.0
                if row["mechanism"] == BANDED:  # steps of all stages are counted together
                    together = banded_rows(self._rows)
                    part = row["steps_reserved"] / next_step(self._rows)
                spent = part * accounting.rdp(accounting.untruncated(tuple(questions_of(together))))[at]
                shares[row["stage"]] = shares.get(row["stage"], 0.0) + spent / total
        return shares

    def affordable_steps(self, row: LedgerRow, at_most: int) -> int:
        """Finds the largest n <= `at_most` such that all reserved rows, rows set aside and n steps of `row` meet the
        target."""

        def too_dear(steps: int) -> bool:
            return not self._affords(self._composition([*self.set_aside, replace(row, steps=steps)]))

        if at_most < 1 or not too_dear(at_most):  # most callers ask for a planned number, so try it first
            return max(at_most, 0)
        return bisect_left(range(1, at_most), True, key=too_dear)

    # Calibration of noise.

    def calibrate(
        self,
        sample_rate: float,
        steps: int,
        *,
        truncated_batch_size: int | None = None,
        at_least: float = 1e-2,
        bands: int = 1,
    ) -> float:
        """Finds the smallest noise multiplier for which the rows so far, rows set aside and `steps` more steps meet
        the target.

        Searches by bracketing and false position on the ledger's accountant. The result meets the target and is at
        most 1e-4 (relative) above the smallest one.

        Args:
            sample_rate (`float`): Poisson sampling probability, in (0, 1]; with bands, that within a group.
            steps (`int`): Number of steps.
            truncated_batch_size (`int`, *optional*): Maximum size of a Poisson sample.
            at_least (`float`): Smallest noise multiplier to return.
            bands (`int`): Number of groups that take turns.

        Raises:
            UsageError: The rows so far use up the target, or one of `dataset_bounds`.
        """
        # Comes first because it reports a wrong rate or number of steps.
        row = sampled_row("the remaining steps", 1.0, sample_rate, steps, truncated_batch_size)
        row = replace(row, steps=accounting.participations(row.steps, bands))
        spent = self.epsilon(extra=self.set_aside)
        if not spent < self.target_epsilon:
            raise UsageError(
                f"Earlier questions already cost epsilon {spent:.6g}, {spent - self.target_epsilon:.6g} over "
                f"--target_epsilon {self.target_epsilon:g}. No noise in the remaining steps can bring it below "
                f"{spent:.6g}: raise --target_epsilon above it, or the noise multipliers of those questions."
            )
        before = self._composition(self.set_aside)
        sigma = self._calibrate(before, row, Bound(*self._target), spent, at_least, self.accountant)

        def planned() -> Composition:
            return self._composition([*self.set_aside, replace(row, noise_multiplier=sigma)])

        for bound in self.dataset_bounds:
            spent = self.epsilon_of_all_releases(extra=self.set_aside, delta=bound.delta)
            if not spent < bound.epsilon:
                raise UsageError(
                    f"The releases of this data set already cost epsilon {spent:.6g} at delta {bound.delta:g}, which "
                    f"uses up --dataset_epsilon {bound.epsilon:g} at delta {bound.delta:g} (a bound of one of them): "
                    "no further question can be asked."
                )
            if not self._within_bound(self._with_others(planned()), bound):
                together = self._with_others(before)
                sigma = max(sigma, self._calibrate(together, row, bound, spent, at_least, "pld"))
        self._affords(planned())  # caches the result
        return sigma

    def calibrate_gaussian(self, share: float, *, sampling_probability: float = 1.0, steps: int = 1) -> float:
        """Finds the noise multiplier of a question that uses `share` of the whole budget.

        Shares are of composed RDP at one order because RDP is additive. Order and total are those of a plain Gaussian
        mechanism that just meets the target (`accounting.gaussian_budget`). In the published settings DP-SGD has the
        same order or its neighbour. Existing rows play no role; `budget_shares` computes the shares of a plan.

        Raises:
            UsageError: The share is not in (0, 1), or the target is too small for RDP at the known orders.
        """
        if not 0 < share < 1:
            raise UsageError(f"The share of the budget must lie strictly between 0 and 1, not {share}.")
        row = sampled_row("the query", 1.0, sampling_probability, steps)
        return accounting.noise_for_share(share, row.sampling_probability, row.steps, *self._target)

    # Asking.

    def reserve(self, row: LedgerRow) -> int:
        """Writes a question to disk, durably, and returns its id. Only then may the question be asked.

        Raises:
            BudgetExceeded: The total would exceed the target; nothing was written.
            UsageError: The release has reserved steps with other bands, groups or noise.
            IntegrityError: Somebody else changed the file since this ledger's last write.
            OSError: The file cannot be written or synced; nothing is granted.
        """
        entry = self._entry(row)
        if row.bands is not None and not all(same_stream(entry, other) for other in banded_rows(self._rows)[:1]):
            raise UsageError(
                f"{row.name!r} has other bands, groups or noise than earlier steps of this release: use the same."
            )
        if not self._affords(self._composition([row])):
            broken = self._broken_bound(self._composition([row]))
            if self._within(self._composition([row])) and broken is not None:
                ours = broken == (self.header["dataset_epsilon"], self.target_delta)
                whose = "" if ours else ", promised to another release"
                raise BudgetExceeded(
                    f"{row.steps} step(s) of {row.name!r} would bring epsilon of all releases of this data set to "
                    f"{self.epsilon_of_all_releases(extra=[row], delta=broken.delta):.6g} at delta {broken.delta:g}, "
                    f"over --dataset_epsilon {broken.epsilon:g}{whose}; the question was not asked."
                )
            raise BudgetExceeded(
                f"{row.steps} step(s) of {row.name!r} would bring epsilon to {self.epsilon(extra=[row]):.6g}, over "
                f"the target {self.target_epsilon:g} ({self.epsilon():.6g} is spent); the question was not asked."
            )
        self._file.append(entry)
        self._open.append(entry["id"])
        if len(self._rows) == 1 and self.after_first_row is not None:
            self.after_first_row()
        return entry["id"]

    def executed(self, reservation: int, steps: int) -> None:
        """Records that a reservation ended after `steps` of its steps. Unused steps stay spent."""
        if reservation not in range(len(self._rows)):
            raise IntegrityError(f"There is no reservation {reservation} in this ledger.")
        entry = self._rows[reservation]
        if not entry["steps_executed"] <= steps <= entry["steps_reserved"]:
            raise IntegrityError(
                f"Reservation {reservation} ({entry['stage']!r}) cannot have executed {steps} steps: "
                f"{entry['steps_executed']} were executed before and {entry['steps_reserved']} are reserved."
            )
        entry.update(steps_executed=int(steps), state="executed")
        self._open = [number for number in self._open if number != reservation]
        self._file.rewrite()

    def take_step(self, row: LedgerRow, *, reserve_steps: int = 1) -> int:
        """Takes one reserved step of a repeated question.

        Uses the newest open reservation of *this process* for the same question (all fields but `steps`), and reserves
        `reserve_steps` more when none is left. Never uses reservations of an earlier process, because nobody knows
        which of their steps were executed. The step counts as executed from here on, in memory; `flush_executed`
        writes the count to disk.

        Returns:
            `int`: Id of the reservation. With bands, the position of the step, from 0, among all steps with bands that
            the release ever reserved, lost ones included. Modulo the bands, it is the group whose turn it is.
        """
        wanted = _identity(self._entry(row))
        number = next((n for n in reversed(self._open) if _identity(self._rows[n]) == wanted), None)
        if number is None:
            number = self.reserve(replace(row, steps=reserve_steps))
        entry = self._rows[number]
        position: int | None = None if row.bands is None else entry["first_step"] + entry["steps_executed"]
        entry["steps_executed"] += 1
        if entry["steps_executed"] == entry["steps_reserved"]:
            self.executed(number, entry["steps_executed"])
        return number if position is None else position

    def flush_executed(self) -> None:
        """Writes the step counts of open reservations to disk (at checkpoints, and when a run ends)."""
        if any(self._rows[number]["steps_executed"] for number in self._open):
            self._file.rewrite()

    # Checks: no question without noise, whatever the target.

    def _checked_target(self, target_epsilon: float) -> float:
        target = finite_number(target_epsilon, field="target_epsilon")
        if not target > 0:
            raise UsageError(f"must be above 0, not {target_epsilon}.", field="target_epsilon")
        return target

    def _check_noise(self, row: LedgerRow) -> None:
        """Checks each row before it is written and before it is counted."""
        if row.mechanism == NON_PRIVATE:
            raise UsageError(
                f"{row.name!r} is asked without noise, which no budget can pay for: give a noise multiplier."
            )

    # Counting.

    @property
    def _target(self) -> tuple[float, float]:
        return self.target_epsilon, self.target_delta

    def _composition(self, extra: Sequence[LedgerRow] = ()) -> Composition:
        return accounting.merge(questions_of([*self._rows, *map(self._entry, extra)]))

    def _cost(self, composition: Composition, accountant: str | None = None) -> float:
        accountant = self.accountant if accountant is None else _known(accountant)
        return accounting.cost(composition, *self._target, accountant)

    def _affords(self, composition: Composition) -> bool:
        # Fewer steps never cost more, so a training loop whose total was checked once needs no further computation.
        known = {question._replace(steps=0): question.steps for question in self._affordable}
        if all(question.steps <= known.get(question._replace(steps=0), 0) for question in composition):
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
        questions = [question for release in self._file.others for question in release.questions]
        return accounting.merge([*composition, *questions])

    def _calibrate(
        self, before: Composition, row: LedgerRow, bound: Bound, spent: float, at_least: float, accountant: str
    ) -> float:
        (question,) = questions_of([self._entry(row)])
        return accounting.calibrate(
            before, row.sampling_probability, row.steps, *bound, accountant, spent, at_least, question.truncation,
        )  # fmt: skip

    def _entry(self, row: LedgerRow) -> dict[str, Any]:
        self._check_noise(row)
        return {
            "id": len(self._rows),
            "stage": row.name,
            "mechanism": row.mechanism,
            "noise_multiplier": row.noise_multiplier,
            "sampling_probability": row.sampling_probability,
            "dataset_size": self.num_images,
            "truncated_batch_size": row.truncated_batch_size,
            "steps_reserved": row.steps,
            "steps_executed": 0,
            "query": _plain(row.query, f"The query facts of {row.name!r}"),
            "partition": row.partition,
            "state": "reserved",
            **({} if row.bands is None else {"bands": row.bands, "first_step": next_step(self._rows)}),
        }


def _identity(entry: dict[str, Any]) -> list[Any]:
    return [entry.get(key) for key in _IDENTITY]


def _known(accountant: str) -> str:
    if accountant not in ACCOUNTANTS:
        raise UsageError(f"must be one of {', '.join(ACCOUNTANTS)}, not {accountant!r}.", field="accountant")
    return accountant


def _plain(facts: dict, what: str) -> dict:
    try:
        return json.loads(json.dumps(facts, allow_nan=False))  # as a reader of the file sees it
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} must be plain JSON: {error}.") from error
