# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which mechanism the steps of DP-SGD get, from public numbers, and what the plan says of it. No torch."""

from collections.abc import Mapping
from typing import Any

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, LedgerRow, gradient_row
from ..errors import IntegrityError, UsageError
from ..mechanisms import Mechanism
from ..mechanisms.band_coefficients import Workload
from ..methods.config import SamplingFacts
from ..methods.flags import DPSGDConfig


#: What the first start drew or computed, and a later one keeps.
_KEPT = ("noise_multiplier", "coefficients", "group_key")


def candidates_of(config: DPSGDConfig, sampling: SamplingFacts, ids: str) -> tuple[Mechanism, ...]:
    """Mechanisms that the flags allow, without their noise."""
    return config.mechanisms(sampling.sample_rate, _workload(config), ids)


def _workload(config: DPSGDConfig) -> Workload:
    return Workload(config.max_train_steps, config.lr_scheduler, config.lr_warmup_steps, config.ema_decay)


def chosen_mechanism(
    config: DPSGDConfig, sampling: SamplingFacts, ledger: PrivacyLedger, ids: str
) -> tuple[Mechanism, dict[int, float]]:
    """The mechanism that the flags name, or the one of all with the least error.

    Args:
        sampling (`SamplingFacts`): With the rate q of all units.
        ledger (`PrivacyLedger`): With what is asked before DP-SGD, which gets what is left.
        ids (`str`): What the id of an image is, see `mechanisms.groups.Grouped`.

    Returns:
        `tuple[Mechanism, dict[int, float]]`: With its noise; and by the number of groups how much noise reaches the
        weights with each one that was looked at, see `Mechanism.error`. Empty where there is one alone.

    Raises:
        UsageError: As `PrivacyLedger.calibrate`.
    """
    found = [
        mechanism.with_noise(ledger.calibrate(mechanism, config.counted_steps))
        for mechanism in candidates_of(config, sampling, ids)
    ]
    if len(found) == 1:
        return found[0], {}
    errors = {mechanism.num_groups: mechanism.error(_workload(config)) for mechanism in found}
    best = min(found, key=lambda each: errors[each.num_groups]) if config.bands is None else found[-1]
    return best, errors


def step_of(config: DPSGDConfig, sampling: SamplingFacts, mechanism: Mechanism, steps: int = 1) -> LedgerRow:
    """The row of steps of DP-SGD, or of rounds of teachers."""
    return gradient_row(
        mechanism, max_grad_norm=config.answer_norm, normaliser=sampling.normaliser, steps=steps,
        noise_multiplicity=config.noise_multiplicity if config.num_shares is None else 1,
    )  # fmt: skip


def resumed_step(config: DPSGDConfig, sampling: SamplingFacts, began: LedgerRow, ids: str) -> LedgerRow:
    """A step as the first start had it.

    Args:
        began (`LedgerRow`): From `private/run.json`, or from the ledger.

    Raises:
        UsageError: The flags name other groups.
        IntegrityError: They name another clip norm, noise multiplicity or sampling.
    """
    config.refuse_other_groups(began.mechanism)
    now = next(
        (step_of(config, sampling, mechanism) for mechanism in candidates_of(config, sampling, ids)
         if mechanism.num_groups == began.mechanism.num_groups), None,
    )  # fmt: skip
    before, after = _flat(began), {} if now is None else _flat(now)
    keys = {*before, *after} - {*_KEPT, "mechanism", "sensitivity", "stage"}
    for key in sorted(keys, key=lambda key: (key != "sampling_probability", key)):  # others may follow from it
        if before.get(key) != after.get(key):
            raise IntegrityError(
                f"{'DP-SGD' if began.name == DP_SGD else 'Teachers'} of this run began with {key.replace('_', ' ')} "
                f"{before.get(key)}, and now it is {after.get(key)}: resume with the flags of the first start."
            )
    return began


def _flat(row: LedgerRow) -> dict[str, Any]:
    entry = row.entry
    return {**entry.pop("query"), **entry}


def describe_noise(rows: Mapping[str, LedgerRow], errors: dict[int, float], unit: str) -> list[str]:
    """Lines for a person: the error of each mechanism against that of independent noise, and what the one that was
    chosen means.

    Args:
        rows (`dict[str, LedgerRow]`): Rows of the plan.
        errors (`dict[int, float]`): From `chosen_mechanism`.
        unit (`str`): What is sampled.
    """
    compared = ", ".join(f"{number}: {error / errors[1]:.1%}" for number, error in errors.items())
    lines = [f"noise that reaches the weights, by number of groups, against independent noise: {compared}"]
    row = rows[DP_SGD]
    mechanism = row.mechanism
    if mechanism.num_groups == 1:
        return [*lines, "dp_sgd: independent noise has the least error here"]
    counted = sum(each.steps for each in rows.values() if each.mechanism == mechanism)  # with those that may be lost
    turns = mechanism.turns(counted)
    lines.append(
        f"dp_sgd: {mechanism.num_groups} groups of {unit}s take turns, {turns} at most to a group; "
        f"{mechanism.remembered} vectors like the model stay in memory"
    )
    if (longest := turns * mechanism.num_groups) > counted:
        lines.append(f"--max_train_steps {row.steps + longest - counted} would cost no more than {row.steps}")
    return lines


def refuse_another_listing(known: str, found: str, ledger: PrivacyLedger) -> None:
    """The group of an id holds for all steps of a release, so images keep their ids.

    Args:
        known, found (`str`): `data.images.listing_of` at the first step, and now.
        ledger (`PrivacyLedger`): Ledger of the run.

    Raises:
        UsageError: The images have other ids, and steps with groups have been reserved.
    """
    if known != found and any(row.mechanism.num_groups > 1 for row in ledger.asked):
        raise UsageError(
            "The images have other ids than when this run began, and --noise_bands or --num_teachers keeps each in "
            "the group of its id: give the same files and columns, or start again in another --output_dir."
        )
