# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which bands DP-SGD's noise gets, from public numbers, and what the plan says of them. No torch."""

import secrets

from ..accounting.epsilon import participations
from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS, Bands, LedgerRow
from ..errors import UsageError
from ..randomness.band_coefficients import Workload, best_coefficients, root_mean_square_error
from ..randomness.keyed_hash import KEY_BYTES


TRIED = (1, 4, 8, 16)  # by `--noise_bands auto`


def chosen_bands(
    asked: int | None,
    ledger: PrivacyLedger,
    *,
    sample_rate: float,
    counted_steps: int,
    workload: Workload,
    ids: str = "row",
) -> tuple[Bands | None, dict[int, float]]:
    """The bands that `--noise_bands` names, or those with the least error of all that can be, and a fresh public key
    for the groups.

    Args:
        asked (`int`, *optional*): By `--noise_bands`, `None` for `auto`.
        ledger (`PrivacyLedger`): With what is asked before DP-SGD, which gets what is left.
        sample_rate (`float`): q, of all units.
        counted_steps (`int`): Steps of DP-SGD, with those that may be lost.
        workload (`Workload`): Steps, learning rate and averaging, into which the noise goes.
        ids (`str`): What the id of an image is, see `Bands`.

    Returns:
        `tuple[Bands | None, dict[int, float]]`: `None` for independent noise; and for each number of bands that was
        looked at, sigma times `root_mean_square_error`. Empty where no bands are asked for.

    Raises:
        UsageError: As `PrivacyLedger.calibrate`.
    """
    if asked == 1:
        return None, {}
    errors = {}
    for number in TRIED if asked is None else (1, asked):
        if number <= workload.steps and number * sample_rate <= 1:
            sigma = ledger.calibrate(number * sample_rate, counted_steps, bands=number)
            errors[number] = sigma * root_mean_square_error(best_coefficients(number, workload), workload)
    number = asked or min(errors, key=errors.__getitem__)
    if number == 1:
        return None, errors
    return Bands(best_coefficients(number, workload), secrets.token_hex(KEY_BYTES), ids), errors


def kept_bands(asked: int | None, began: int, workload: Workload, ids: str) -> Bands | None:
    """The bands of a run that goes on, as its first start chose them, with a fresh key until a step was taken.

    Raises:
        UsageError: `--noise_bands` names another number.
    """
    refuse_other_bands(asked, began)
    return None if began == 1 else Bands(best_coefficients(began, workload), secrets.token_hex(KEY_BYTES), ids)


def describe_bands(rows: dict[str, LedgerRow], errors: dict[int, float], unit: str) -> list[str]:
    """Lines for a person: the error of each number of bands against that of independent noise, and what those that
    were chosen mean.

    Args:
        rows (`dict[str, LedgerRow]`): Rows of the plan.
        errors (`dict[int, float]`): From `chosen_bands`.
        unit (`str`): What is sampled.
    """
    compared = ", ".join(f"{number}: {error / errors[1]:.1%}" for number, error in errors.items())
    lines = [f"noise that reaches the weights, by number of bands, against independent noise: {compared}"]
    bands, steps = rows["dp_sgd"].bands, rows["dp_sgd"].steps
    if bands is None:
        return [*lines, "dp_sgd: independent noise has the least error here"]
    counted = sum(row.steps for row in rows.values() if row.bands is not None)  # with those that may be lost
    turns = participations(counted, bands)
    lines.append(
        f"dp_sgd: {bands} bands: as many groups of {unit}s take turns, {turns} at most to a group; "
        f"{bands - 1} vectors like the model stay in memory"
    )
    if turns * bands > counted:
        lines.append(f"--max_train_steps {steps + turns * bands - counted} would cost no more than {steps}")
    return lines


def refuse_other_bands(asked: int | None, began: int) -> None:
    """Raises `UsageError` if `--noise_bands` names another number than that of the first start."""
    if asked is not None and asked != began:
        raise UsageError(
            f"--noise_bands {asked} is not what this run began with, {began}: resume with --noise_bands {began}."
        )


def refuse_other_groups(asked: int | None, num_shares: int | None, ledger: PrivacyLedger) -> None:
    """Groups and bands hold for all steps of a release, as shares of teachers do. `--noise_bands auto` takes those of
    the first start.

    Args:
        asked (`int`, *optional*): By `--noise_bands`, `None` for `auto`.
        num_shares (`int`, *optional*): By `--num_teachers`, of a method with teachers.
        ledger (`PrivacyLedger`): Ledger of the run.

    Raises:
        UsageError: The run began with other bands or shares.
    """
    shares = [row["query"]["shares"] for row in ledger.rows if row["stage"] == TEACHERS]
    if shares and shares[0] != num_shares:
        raise UsageError(
            f"--num_teachers {num_shares} is not what this run began with, {shares[0]}: resume with "
            f"--num_teachers {shares[0]}."
        )
    began = [row.get("bands", 1) for row in ledger.rows if row["stage"] == DP_SGD]
    if began:
        refuse_other_bands(asked, began[0])


def refuse_another_listing(known: str, found: str, ledger: PrivacyLedger) -> None:
    """The group of an id holds for all steps of a release, so images keep their ids.

    Args:
        known, found (`str`): `data.images.listing_of` at the first step, and now.
        ledger (`PrivacyLedger`): Ledger of the run.

    Raises:
        UsageError: The images have other ids, and steps with bands have been reserved.
    """
    if known != found and any("group_key" in row["query"] for row in ledger.rows):
        raise UsageError(
            "The images have other ids than when this run began, and --noise_bands or --num_teachers keeps each in "
            "the group of its id: give the same files and columns, or start again in another --output_dir."
        )
