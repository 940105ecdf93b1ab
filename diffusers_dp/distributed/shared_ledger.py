# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run's one ledger, shared by its processes."""

from collections.abc import Callable
from typing import Any

from ..accounting.ledger import PrivacyLedger
from .processes import Processes


_CONSTANTS = (
    "path", "target_epsilon", "target_delta", "num_images", "accountant", "header", "dataset_epsilon",
    "dataset_bounds", "has_guarantee",
)  # fmt: skip


def shared_ledger(processes: Processes, make: Callable[[], PrivacyLedger]) -> PrivacyLedger:
    """Shares the ledger that `make` opens in the first process; returns the ledger itself if there is one process."""
    return make() if processes.count == 1 else SharedLedger(processes, make)


def _asked(name: str) -> Any:
    def ask(self: "SharedLedger", *arguments: Any, **options: Any) -> Any:
        return self._processes.on_first(lambda: getattr(self._ledger, name)(*arguments, **options))

    return ask


def _read(name: str) -> Any:
    return property(lambda self: self._processes.on_first(lambda: getattr(self._ledger, name)))


class SharedLedger(PrivacyLedger):
    """Forwards each call to the ledger of the first process; its result or error reaches all processes.

    All processes make the same calls in the same order.

    Args:
        processes (`Processes`): Processes of the run.
        make (`Callable`): Function that opens the ledger; called in the first process.
    """

    def __init__(self, processes: Processes, make: Callable[[], PrivacyLedger]) -> None:
        self._processes = processes
        self._ledger: PrivacyLedger | None = None

        def open_ledger() -> dict[str, Any]:
            self._ledger = make()
            return {name: getattr(self._ledger, name) for name in _CONSTANTS}

        self.__dict__.update(processes.on_first(open_ledger))


for _name, _found in vars(PrivacyLedger).items():
    if not _name.startswith("_"):
        setattr(SharedLedger, _name, _read(_name) if isinstance(_found, property) else _asked(_name))
