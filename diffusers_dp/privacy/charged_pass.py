# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The order in which a query is paid for: budget, pass over the images, row on disk, and only then noise."""

from collections.abc import Callable
from typing import TypeVar

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..distributed.processes import Processes
from ..errors import ProcessLost


T = TypeVar("T")


def charged_pass(ledger: PrivacyLedger, row: LedgerRow, processes: Processes, look: Callable[[], T]) -> tuple[T, int]:
    """
    Looks at the images, and writes the row of the query once the exact sums of all processes are in memory.

    A process that is killed before the row takes what it saw with it, so that nothing is charged. An error shows
    something to whoever reads or catches it, so that the row is written, too, before the error goes on.

    Args:
        ledger (`PrivacyLedger`): Pays for all that `look` returns.
        row (`LedgerRow`): The query, with all of its repeats.
        processes (`Processes`): All of them look, and wait for each other.
        look (`Callable`): Passes over the images; adds no noise, and communicates with no other process.

    Returns:
        What `look` returned in this process, and the id of the reservation.

    Raises:
        BudgetExceeded: The row would exceed the budget; no image was looked at.
        ProcessLost: Another process was killed in its pass, and nothing is charged unless the first one's own pass
            failed; or the other's pass failed.
    """
    ledger.refuse_unaffordable(row)
    failed = True
    try:
        seen = look()
        failed = False
    finally:
        charged = failed  # an error of one's own, whatever becomes of the others
        try:
            failed = processes.any(failed)
            charged = True
        finally:
            if charged:
                reservation = ledger.reserve(row)
    if failed:
        raise ProcessLost(processes.lost)
    return seen, reservation
