# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger: every query to the sensitive images, and their total cost.

Each run has one `PrivacyLedger`. A query (a `LedgerRow`) is written and synced to disk *before* its noise is drawn,
a step of DP-SGD before an image is read, and both are refused if the total would exceed the target. Reserved steps
count as spent, executed or not; a crash can therefore waste budget but never hide any.

Neighbouring data sets differ in **one image that is zeroed out**; the number of images and the label set are public.
`ledger_costs.py` adds up the rows, and `epsilon.py` computes the numbers. Nothing here loads torch.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BudgetExceeded, IntegrityError, UsageError
from ..files.untrusted_values import plain_facts
from ..mechanisms.mechanism import finite_number
from ..words import FORMAT
from .epsilon import Composition
from .ledger_costs import LedgerCosts, known_accountant
from .ledger_file import (
    Bound,
    LedgerFile,
    ReleaseRows,
    bounds_of,
    check_dataset_id,
    facts_of,
)
from .ledger_row import LedgerRow


class PrivacyLedger(LedgerCosts):
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
        has_guarantee: bool = True,
    ) -> None:
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
        self.accountant: str = known_accountant(accountant)
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
        return list(map(facts_of, self._rows))

    @property
    def asked(self) -> list[LedgerRow]:
        """The same rows as values, with the steps that were reserved."""
        return list(self._file.own.asked)

    @property
    def _rows(self) -> list[dict[str, Any]]:
        return self._file.own.rows

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
        if len(self._rows) == 1 and self.after_first_row is not None:
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
        entry = self._rows[number]
        position = int(entry.get("first_step", 0) + entry["steps_executed"])
        entry["steps_executed"] += 1
        if entry["steps_executed"] == entry["steps_reserved"]:
            self.executed(number, entry["steps_executed"])
        return position

    def flush_executed(self) -> None:
        """Writes the step counts of open reservations to disk (at checkpoints, and when a run ends)."""
        if any(self._rows[number]["steps_executed"] for number in self._open):
            self._file.rewrite()
