# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The noise of a run: the mechanism that the steps of DP-SGD get, from public numbers, and what a run that goes on
keeps. No torch.

A noise multiplier that is chosen again after an answer was seen would be adaptive, which PLD does not cover. So a run
that goes on keeps those of its first start, also of what it has not asked yet, and asks nothing that was not planned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow, gradient_row
from ..errors import IntegrityError, UsageError
from ..mechanisms import Mechanism
from ..methods.config import SamplingFacts
from ..methods.flags import DPSGDConfig
from ..queries.query import Query


#: What the first start drew or computed, and a later one keeps.
_KEPT = ("noise_multiplier", "coefficients", "group_key")


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
        for mechanism in config.mechanisms(sampling.sample_rate, ids)
    ]
    if len(found) == 1:
        return found[0], {}
    errors = {mechanism.num_groups: mechanism.error(config.workload) for mechanism in found}
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
    candidates = config.mechanisms(sampling.sample_rate, ids)
    now = [each for each in candidates if each.num_groups == began.mechanism.num_groups]
    before, after = _flat(began), _flat(step_of(config, sampling, now[0])) if now else {}
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


#: By the name of a row: what of it is never chosen again.
Noise = Mapping[str, Mapping[str, Any]]


def noise_of(rows: Mapping[str, LedgerRow], queries: Sequence[Query], exact: bool) -> dict[str, dict[str, Any]]:
    """What `private/run.json` keeps of a plan, as JSON values."""
    kept = {}
    for query in queries:
        kept[query.name] = {**_asked(query), "noise_multiplier": rows[query.name].noise_multiplier}
    for name in {DP_SGD, TEACHERS} & set(rows):
        row = rows[name]
        kept[name] = {**row.entry, "steps_reserved": row.steps}
    return {name: {**found, "exact": exact} for name, found in kept.items()}


def kept_row(kept: Noise, query: Query, of_door: Mapping[str, Any]) -> LedgerRow:
    """
    The row of a query with the noise of the first start.

    Raises:
        UsageError: The first start did not plan the query, or planned it by other flags.
        IntegrityError: The values are damaged.
    """
    found = kept.get(query.name)
    if found is None:
        raise UsageError(
            f"This run began without the query '{query.name}': resume with the flags of the first start, or start "
            "another --output_dir."
        )
    for key, now in _asked(query).items():
        if found.get(key) != now:
            here, then = (f"{each:.12g}" if isinstance(each, float) else each for each in (now, found.get(key)))
            raise UsageError(
                f"The query '{query.name}' has {key.replace('_', ' ')} {here}, and this run began with {then}: resume "
                "with the flags of the first start, or start another --output_dir."
            )
    return query.row(_number(found, query.name), **of_door)


def refuse_the_other_kind(kept: Noise, has_guarantee: bool, exact: bool) -> None:
    """Raises `UsageError` where a run with a guarantee would go on without one, or the other way round, or with
    another kind of noise."""
    if any(found.get("exact") != exact for found in kept.values()):
        now, then = ("exact", "float") if exact else ("float", "exact")
        raise UsageError(
            f"--noise is {now}, and this run began with {then}: give --noise {then}, or start another --output_dir."
        )
    began = all(_number(found, name) > 0 for name, found in kept.items())
    if kept and began != has_guarantee:
        then = "with noise" if began else "without noise (inf)"
        raise UsageError(
            f"--target_epsilon is of the other kind, and this run began {then}: resume with the flags of the first "
            "start, or start another --output_dir."
        )


def kept_step(kept: Noise, name: str) -> LedgerRow:
    """
    DP-SGD, or rounds of teachers, as the first start planned it.

    Args:
        name (`str`): `DP_SGD` or `TEACHERS`.

    Raises:
        IntegrityError: The values are missing or damaged.
    """
    try:
        return LedgerRow.read(kept[name])
    except (LookupError, TypeError, ValueError, UsageError):
        raise IntegrityError(
            f"run.json is damaged: it has no noise multiplier of '{name}'; restore the file."
        ) from None


def _asked(query: Query) -> dict[str, Any]:
    return {
        "flag": query.noise_multiplier, "budget_share": query.budget_share, "sample_rate": query.sample_rate,
        "repeats": query.repeats,
    }  # fmt: skip


def _number(found: Mapping[str, Any], name: str) -> float:
    sigma = found.get("noise_multiplier")
    if not isinstance(sigma, float | int) or isinstance(sigma, bool):
        raise IntegrityError(f"run.json is damaged: it has no noise multiplier of '{name}'; restore the file.")
    return sigma
