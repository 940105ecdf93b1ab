# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs of DP-SGD with canaries among records of noise: honest, with the noise off and with the noise halved, all else
the same."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from .canaries import FaultyNoise, Watch, WatchedImages
from .checks import NUM_FIXED_COINS, Check, Outcome, exact_check, judge
from .stand_ins import (
    NOISE_SCALES,
    STAND_IN_SHAPE,
    audited_door,
    counting_ledger,
    stand_in,
    step_options,
    tagged_noise,
)
from .turns import enough_steps


RECORDS_PER_STEP = 300
FEWEST_RECORDS, MOST_RECORDS = 600, 2000
FEWEST_STEPS, MOST_STEPS = 60, 400
QUICK_STEPS, QUICK_STEPS_BROKEN = 200, 20
STEPS_PER_RECORD = 6  # that a record takes part in, on average


def size_of_audit(row: LedgerRow, quick: bool) -> tuple[int, list[int]]:
    """Records, and steps of the three runs: enough that a record takes part in six, as far as that is quick."""
    records = math.ceil(RECORDS_PER_STEP / row.mechanism.sample_rate)
    steps = math.ceil(STEPS_PER_RECORD / row.mechanism.sample_rate)
    steps = max(FEWEST_STEPS, min(MOST_STEPS, steps))
    broken = steps
    if quick:  # noise of the wrong size shows in any number of steps
        steps, broken = min(steps, QUICK_STEPS), QUICK_STEPS_BROKEN
    steps, broken = (enough_steps(number, row.mechanism) for number in (steps, broken))
    return max(FEWEST_RECORDS, min(MOST_RECORDS, records)), [steps, broken, broken]


def stand_in_runs(row: LedgerRow, delta: float, *, quick: bool = False) -> list[Outcome]:
    """Those of a stand-in's model on small images. All three are held against what the honest run is said to cost."""
    num_records, lengths = size_of_audit(row, quick)
    physical = math.ceil(num_records * row.mechanism.sample_rate / 3)  # several to a step
    query = step_options(row, physical, reserve_steps=lengths[0])

    def train(door: WatchedImages, steps: int) -> None:
        audited = stand_in()
        for _ in range(steps):
            door.noisy_gradient(audited.model, audited.row_loss, **query)

    return canary_runs(
        row, num_records, num_records // 2, lengths, train,
        ledgers=[counting_ledger(num_records, delta) for _ in NOISE_SCALES],
        accountant=None if quick else "pld",
    )  # fmt: skip


def canary_runs(
    row: LedgerRow,
    num_records: int,
    num_canaries: int,
    lengths: list[int],
    train: Callable[[WatchedImages, int], None],
    *,
    ledgers: Sequence[PrivacyLedger],
    accountant: str | None = None,
    after_step: Callable[[], Any] = lambda: None,
    image_shape: tuple[int, ...] = STAND_IN_SHAPE,
    class_names: tuple[str, ...] | None = None,
    device: str = "cpu",
) -> list[Outcome]:
    """The three runs, see `checks.judge`.

    Args:
        row (`LedgerRow`): The step of the plan. The noise is that which `train` asks for.
        num_records, num_canaries (`int`): N of the audit, and how many of these are canaries.
        lengths (`list[int]`): Steps of each run.
        train (`Callable`): Asks a door for so many steps.
        ledgers (`Sequence[PrivacyLedger]`): Of each run; its epsilon, by `accountant`, is the claim.
    """
    taken, readable = flip_coins(num_records, num_canaries)
    images, labels = tagged_noise(num_records, image_shape, None), None
    if class_names is not None:
        labels = np.random.default_rng().integers(0, len(class_names), num_records)
    outcomes = []
    for noise_scale, steps, ledger in zip(NOISE_SCALES, lengths, ledgers, strict=True):
        watch = Watch(num_canaries)
        door = audited_door(
            images, labels, readable, generator=FaultyNoise(noise_scale), ledger=ledger, class_names=class_names,
            device=device, exact=row.mechanism.exact, kind=WatchedImages, watch=watch, after_step=after_step,
        )  # fmt: skip
        train(door, steps)
        sigma = watch.queries[-1]["mechanism"].noise_multiplier
        mechanism = row.mechanism.at(max_images_per_unit=None).with_noise(sigma)  # each record is a unit
        asked, claim = replace(row, mechanism=mechanism, steps=steps), ledger.epsilon(accountant)
        outcome = judge(
            watch, asked, num_records, claim, ledger.target_delta, taken, np.flatnonzero(readable), noise_scale
        )  # fmt: skip
        outcomes.append(replace(outcome, checks=[*ledger_checks(ledger, asked), *outcome.checks]))
    return outcomes


def flip_coins(num_records: int, num_canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """A fair coin for each canary but the first two, of records 0 to `num_canaries` - 1; the others are all there.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Whether each canary takes part, `[num_canaries]`, and whether each record
        does, `[num_records]`. Both sides have a canary at least.
    """
    taken = np.random.default_rng().random(num_canaries) < 0.5
    taken[:NUM_FIXED_COINS] = True, False  # so that neither side can be empty
    return taken, np.concatenate([taken, np.ones(num_records - num_canaries, dtype=bool)])


def ledger_checks(ledger: PrivacyLedger, asked: LedgerRow) -> list[Check]:
    """What was written down is what was asked."""
    rows = [row for row in ledger.rows if row["stage"] == asked.name]
    wrong = sum(row[name] != value for row in rows for name, value in asked.entry.items())
    return [
        exact_check("ledger: steps", sum(row["steps_executed"] for row in rows), asked.steps),
        exact_check("ledger: facts that differ from the query", wrong, 0),
    ]
