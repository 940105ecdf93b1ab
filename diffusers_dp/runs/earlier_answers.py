# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Noisy answers of an earlier run as the start of another one."""

from pathlib import Path
from typing import Any

import torch

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_file import ReleaseRows, other_releases
from ..accounting.ledger_row import LedgerRow
from ..errors import IntegrityError, UsageError
from ..privacy.stored_answers import NoisyAnswers
from .plan import Plan


def take_answers(private: Path, plan: Plan, ledger: PrivacyLedger, answers: NoisyAnswers) -> None:
    """Takes the answers of an earlier run to the questions of a plan, and charges each as that run was charged.

    The release of each run is a function of the answer, so each ledger holds it and each guarantee holds by itself.
    All of them together cost at most the sum. A question that was not answered there is asked as ever.

    Args:
        private (`Path`): Private folder of the earlier run, which has a ledger of its own.
        plan (`Plan`), ledger (`PrivacyLedger`), answers (`NoisyAnswers`): Those of this run.

    Raises:
        BudgetExceeded: An answer would exceed this run's budget; it is not taken.
        IntegrityError: An answer or the ledger there is damaged, or that ledger does not hold what an answer cost.
        UsageError: The answers are about images with other public facts, or to other questions.
    """
    earlier = NoisyAnswers(private / "answers", answers.processes)
    for query in plan.queries:
        row = plan.rows[query.name]
        if not (earlier.folder / row.name).exists():
            continue
        release = _release(private / "ledger.jsonl", ledger.header)
        taken = earlier.get(row, release, **query.meaning)
        assert taken is not None
        answers.ask(row, ledger, lambda: _charged(taken, row.name, release, ledger), **query.meaning)


def _release(path: Path, header: dict[str, Any]) -> ReleaseRows:
    releases = other_releases(path, dataset_id=None, release_id="")
    if not releases:
        raise IntegrityError(f"{path} is missing, so nothing says what the answers beside it cost: restore it.")
    there, here = ({**each["public_facts"], **each} for each in (releases[0].header, header))
    for name in ("num_images", "unit_of_privacy", "image_shape", "class_names"):
        if there.get(name) != here.get(name):
            raise UsageError(
                f"{path} has {name} = {there.get(name)}, and this run {here.get(name)}: take answers about the same "
                "images."
            )
    return releases[0]


def _charged(
    taken: dict[str, torch.Tensor], stage: str, release: ReleaseRows, ledger: PrivacyLedger
) -> dict[str, torch.Tensor]:
    """The answer, once the ledger holds every row that it cost, with all facts."""
    for row in release.rows:
        if row["stage"] == stage:
            paid = LedgerRow(
                stage, row["mechanism"], row["noise_multiplier"], row["sampling_probability"], row["steps_reserved"],
                row["query"], row["partition"],
            )  # fmt: skip
            ledger.executed(ledger.reserve(paid), row["steps_executed"])
    return taken
