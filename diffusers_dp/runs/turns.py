# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--participation exactly`: how many turns each unit has, and the secret key that gives them. No torch.

The key is the one secret that a run keeps and uses again. It decides who takes part in which step, and never what
noise there is. It stays in `private/`; the ledger states its hash, so that no other key goes on with a run.
"""

import hashlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import verify
from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import ALLOCATED, DP_SGD, LOSS_STEPS, Allocation, Bands, LedgerRow
from ..errors import IntegrityError, UsageError
from ..files.journal import replace_file
from ..methods.config import SamplingFacts
from ..randomness.keyed_hash import SECRET_BYTES


KEY_NAME = "participation_key.json"
#: Of `verify.allocation_work`: about ten seconds, and how much of what the verifier takes for all releases together.
MOST_WORK, SHARE_OF_WORK = 6_000_000, 0.4


def chosen_allocation(
    ledger: PrivacyLedger, sampling: SamplingFacts, bands: Bands | None, ids: str
) -> tuple[Allocation, bytes, float]:
    """The turns of the units under a fresh secret key, that key, and the noise multiplier that Poisson sampling would
    need. Losses are counted on the finest grid that takes seconds, and leaves the verifier time for other releases of
    the data set.

    Args:
        ledger (`PrivacyLedger`): With what is asked before DP-SGD.
        sampling (`SamplingFacts`): With turns.
        bands (`Bands`, *optional*): Those of the noise.
        ids (`str`): What an id is, see `Bands`.

    Raises:
        UsageError: Counting would take minutes.
    """
    assert sampling.turns is not None
    turns, participations = sampling.turns
    number = 1 if bands is None else bands.count
    by_coins = ledger.calibrate(participations / turns, turns * number, bands=number)
    taken = [_work_of(release["events"]) for release in ledger.prior_releases]
    most = min(MOST_WORK, SHARE_OF_WORK * (verify.MOST_WORK - sum(taken)))
    works = {step: verify.allocation_work(0.9 * by_coins, turns, participations, step) for step in LOSS_STEPS}
    step = next((step for step, work in works.items() if work <= most), None)
    if step is None:
        whose = "" if not any(taken) else f", beside those of {sum(map(bool, taken))} earlier release(s),"
        raise UsageError(
            f"--participation exactly in {participations} of {turns} turns{whose} takes too long to count: lower "
            "--max_train_steps, raise --noise_bands, or leave it out."
        )
    key = secrets.token_bytes(SECRET_BYTES)
    return Allocation(turns, participations, hashlib.sha256(key).hexdigest(), ids, step), key, by_coins


def _work_of(events: Sequence[dict[str, Any]]) -> float:
    """What the turns of a release take to count."""
    for event in events:
        turns = Allocation.of(event["query"])
        if turns is not None:
            sigma = event["noise_multiplier"]
            return verify.allocation_work(sigma, turns.turns, turns.participations, turns.loss_step)
    return 0.0


def describe_turns(row: LedgerRow, by_coins: float, unit: str) -> list[str]:
    """Lines for a person: in how many steps each unit takes part, and the noise against that of Poisson sampling.

    Args:
        row (`LedgerRow`): DP-SGD of the plan.
        by_coins (`float`): The noise multiplier of Poisson sampling.
        unit (`str`): What takes part.
    """
    assert row.allocation is not None
    turns, number = row.allocation, row.bands or 1
    group = "" if number == 1 else " of its group"
    ratio = row.noise_multiplier / by_coins
    saved = "" if ratio < 1 else ", so that it saves nothing: leave --participation out"
    return [
        f"dp_sgd: each {unit} takes part in exactly {turns.participations} of {turns.turns} turns{group}, "
        f"{row.query['normaliser']:,} {unit}s a step on average; the first step costs as much as all",
        f"dp_sgd: noise {ratio:.1%} of what --participation poisson needs{saved}",
    ]


def refuse_other_participation(asked: str, ledger: PrivacyLedger) -> None:
    """Raises `UsageError` if the steps of this run, as its ledger has them, had another `--participation`."""
    began = {row["mechanism"] == ALLOCATED for row in ledger.rows if row["stage"] == DP_SGD}
    if began and began != {asked == "exactly"}:
        then = "exactly" if True in began else "poisson"
        raise UsageError(f"--participation {asked} is not what this run began with: resume with {then}.")


def refuse_other_turns(began: Allocation | None, now: tuple[int, int] | None) -> None:
    """Raises `IntegrityError` if the steps of this run began with another number of turns than the flags mean now."""
    if began is not None and (began.turns, began.participations) != now:
        raise IntegrityError(
            f"DP-SGD of this run began with {began.participations} of {began.turns} turns for each unit, and now it "
            f"is {' of '.join(map(str, reversed(now or ())))}: resume with the flags of the first start."
        )


def participation_key(private: Path, fresh: bytes | None, ledger: PrivacyLedger) -> bytes | None:
    """The key of the run: that of its earlier steps, or else the plan's, which is written durably first.

    Args:
        private (`Path`): The run's private folder.
        fresh (`bytes`, *optional*): The plan's.
        ledger (`PrivacyLedger`): Ledger of the run.

    Raises:
        IntegrityError: The key of earlier steps is missing or damaged, or another lies there.
    """
    path, taken = private / KEY_NAME, [row["query"] for row in ledger.rows if row["mechanism"] == ALLOCATED]
    if not taken:
        if fresh is not None:
            replace_file(path, json.dumps({"key": fresh.hex()}).encode())
        return fresh
    try:
        key = bytes.fromhex(json.loads(path.read_bytes())["key"])
    except (OSError, ValueError, TypeError, KeyError):
        key = b""
    if hashlib.sha256(key).hexdigest() != taken[0]["participation_key_sha256"]:
        raise IntegrityError(
            f"{path} is missing, damaged or of another run, and images had their turns by its key: restore it from a "
            "backup, or start again in another --output_dir."
        )
    return key
