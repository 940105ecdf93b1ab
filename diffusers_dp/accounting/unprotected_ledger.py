# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger of runs without any guarantee (`--target_epsilon inf`), for comparison with the papers' rows at epsilon =
infinity. No torch.

The door adds the noise that the ledger's row states. A `PrivacyLedger` accepts no row without noise; an
`UnprotectedLedger` accepts no other. Only `runs.run_ledger.new_ledger` creates one. It has no receipt, so such a run
cannot be released.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..mechanisms import Everyone, Mechanism
from .epsilon import Composition
from .ledger import PrivacyLedger
from .ledger_row import LedgerRow


class UnprotectedLedger(PrivacyLedger):
    """The ledger of a run without guarantee: it records each query as asked without noise.

    Epsilon is infinite, every row is granted, and calibration returns 0. No accountant is used.

    Args:
        path, target_delta, num_images, accountant, public_facts, unit_of_privacy: See `PrivacyLedger`. The ledger of
            a data set (`--dataset_id`) adds up guarantees, so it never holds such a run.

    Raises:
        UsageError, IntegrityError: See `PrivacyLedger`. Neither class accepts the other's files.
    """

    has_guarantee = False

    def __init__(
        self,
        path: Path | str | None,
        *,
        target_delta: float,
        num_images: int,
        accountant: str = "pld",
        public_facts: dict | None = None,
        unit_of_privacy: str = "image",
    ) -> None:
        super().__init__(
            path, target_epsilon=math.inf, target_delta=target_delta, num_images=num_images, accountant=accountant,
            public_facts=public_facts, unit_of_privacy=unit_of_privacy,
        )  # fmt: skip

    def epsilon_of_all_releases(self, *, extra: Sequence[LedgerRow] = (), delta: float | None = None) -> float:
        return math.inf

    def budget_shares(self) -> dict[str, float]:
        """Returns no shares because there is no budget."""
        return {}

    def calibrate(self, mechanism: Mechanism, steps: int, *, at_least: float = 0.0) -> float:
        return 0.0

    def calibrate_gaussian(
        self, share: float, mechanism: Mechanism = Everyone(noise_multiplier=1.0), steps: int = 1
    ) -> float:
        return 0.0

    def _checked_target(self, target_epsilon: float) -> float:
        return math.inf

    def _check_noise(self, row: LedgerRow) -> None:
        if row.mechanism.has_noise:
            raise UsageError(f"{row.name!r} is asked with noise, but runs with --target_epsilon inf add no noise.")

    def _cost(self, composition: Composition, accountant: str | None = None) -> float:
        return math.inf

    def _affords(self, composition: Composition) -> bool:
        return True
