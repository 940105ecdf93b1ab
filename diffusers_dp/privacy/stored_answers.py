# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Noisy answers of the one-shot queries on disk. Nothing of it is pickled, and no state of a random generator is
written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..distributed.interruption import uninterrupted
from ..distributed.processes import Processes
from ..errors import IntegrityError, UsageError
from ..files.sealed_folder import open_sealed, seal


class NoisyAnswers:
    """Answers of the one-shot queries, each written once. Asking again and keeping the nicer answer would be a second
    release; so a run that resumes reads the stored one, and a stored one is never replaced.

    Args:
        folder (`str` or `Path`): Where the answers lie, a folder for each; made when needed.
        processes (`Processes`, *optional*): Processes of the run; the first one reads and writes, and gives the others
            what it read.
    """

    def __init__(self, folder: str | Path, processes: Processes | None = None):
        self.folder = Path(folder)
        self.processes = processes or Processes()

    @uninterrupted()
    def ask(
        self, row: LedgerRow, ledger: PrivacyLedger, query: Callable[[], dict[str, torch.Tensor]], **meaning: Any
    ) -> dict[str, torch.Tensor]:
        """
        The stored answer or, the first time, that of `query`, which is stored before it is used. SIGTERM waits for
        both.

        Args:
            row, ledger, meaning: As for `get`.
            query (`Callable`): Asks the door, and returns the tensors to store.

        Raises:
            IntegrityError, UsageError: As `get`.
            BudgetExceeded: The query would exceed the budget; nothing was asked.
        """
        stored = self.get(row, ledger, **meaning)
        if stored is None:
            self.put(row, {name: tensor.cpu() for name, tensor in query().items()}, **meaning)
            stored = self.get(row, ledger, **meaning)
        assert stored is not None
        return stored

    def get(self, row: LedgerRow, ledger: PrivacyLedger, **meaning: Any) -> dict[str, torch.Tensor] | None:
        """
        The answer as it was put, on the CPU, or `None` if the query has not been answered.

        Args:
            row (`LedgerRow`): The query, as this run would ask it.
            ledger (`PrivacyLedger`): Ledger of the run, which must hold what the answer cost.
            meaning (JSON values): As given to `put`.

        Raises:
            IntegrityError: The stored answer is damaged, or the ledger does not know it.
            UsageError: It answers another query.
        """
        return self.processes.on_first(lambda: self._get(row, ledger, meaning))

    def _get(self, row: LedgerRow, ledger: PrivacyLedger, meaning: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        folder = self.folder / row.name
        if not folder.exists():
            return None
        state, tensors = open_sealed(folder)
        for name, value in _query(row, meaning).items():
            if state["query"].get(name) != value:
                raise UsageError(
                    f"The stored answer {folder} was asked for with {name} = {state['query'].get(name)}, this run "
                    f"has {value}: resume with the flags of that run, or start another --output_dir."
                )
        query = [row.name, row.noise_multiplier, row.sampling_probability, row.steps]
        keys = ("stage", "noise_multiplier", "sampling_probability", "steps_reserved")
        if query not in [[entry[key] for key in keys] for entry in ledger.rows]:
            raise IntegrityError(
                f"The ledger does not hold what {folder} cost: put back the whole ledger.jsonl of this run, for what "
                "was spent stays spent."
            )
        return tensors["answer"]

    def put(self, row: LedgerRow, tensors: dict[str, torch.Tensor], **meaning: Any) -> None:
        """
        Store the answer to `row` (tensors of any shape and type), atomically, with what its numbers mean.

        Args:
            meaning (JSON values): What else decides how the numbers are to be read, a public seed for instance.

        Raises:
            IntegrityError: There is an answer of that name.
        """
        self.processes.on_first(lambda: self._put(row, tensors, meaning))

    def _put(self, row: LedgerRow, tensors: dict[str, torch.Tensor], meaning: dict[str, Any]) -> None:
        folder = self.folder / row.name
        if folder.exists():
            raise IntegrityError(f"{folder} holds an answer already; a noisy answer is never replaced.")
        seal(folder, {"answer": tensors}, {"query": _query(row, meaning)})


def _query(row: LedgerRow, meaning: dict[str, Any]) -> dict[str, Any]:
    return {
        "noise_multiplier": row.noise_multiplier,
        "sampling_probability": row.sampling_probability,
        "steps": row.steps,
        **meaning,
    }
