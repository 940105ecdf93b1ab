# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A plan for a person to read: its rows, what drowns in noise, and what the data set's bounds leave. No torch."""

import math
from collections.abc import Iterable, Mapping, Sequence

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_file import Bound
from ..accounting.ledger_row import LedgerRow
from ..queries.query import Query


DROWNED = 3  # signal to noise, if a mean feature had norm 1, below which the answer is called noise
#: Images and values that a query computes at once, float64 copies of its answer, and float32 ones of its features.
AT_ONCE, VALUES_AT_ONCE, ANSWERS, COPIES = 500, 2**24, 3, 3
NEARLY = 0.99  # of --target_epsilon, which calibrated noise reaches where nothing else bounds it


def bound_in_words(bound: Bound, ledger: PrivacyLedger) -> str:
    """A bound of the data set, with its delta where that is not the run's own."""
    where = "" if bound.delta == ledger.target_delta else f" at delta {bound.delta:g} of another release"
    return f"--dataset_epsilon {bound.epsilon:g}{where}"


def others_in_words(ledger: PrivacyLedger) -> str:
    number = len(ledger.prior_releases)
    return f"{number} other release{'' if number == 1 else 's'} of {ledger.header['dataset_id']}"


def table_of_rows(ledger: PrivacyLedger, rows: Mapping[str, LedgerRow]) -> list[str]:
    shares = ledger.budget_shares()
    lines = [
        f"{'stage':<20} {'noise multiplier':>16} {'sample rate':>12} {'steps':>7} {'RDP spent':>9} "
        f"{'epsilon so far':>15}"
    ]
    for name, epsilon in ledger.epsilon_by_stage():
        row = rows[name]
        lines.append(
            f"{name:<20} {row.noise_multiplier:>16.4f} {row.sampling_probability:>12.5f} {row.steps:>7}"
            f" {f'{shares[name]:.1%}' if name in shares else '-':>9} {epsilon:>15.4f}"
        )
    if "restart_slack" in rows:
        lines.append("restart_slack: steps of DP-SGD that are taken, and spent, only in the place of lost ones")
    if not ledger.has_guarantee:
        lines.append(
            "NO GUARANTEE: epsilon is infinite, for nothing gets noise (--target_epsilon inf), N "
            f"{ledger.num_images}; no release is made"
        )
        return lines
    lines.append(
        f"total ({ledger.accountant}): epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}, N "
        f"{ledger.num_images}"
    )
    if ledger.header["dataset_id"] is not None:
        limit = "" if ledger.dataset_epsilon is None else f" (--dataset_epsilon {ledger.dataset_epsilon:g})"
        lines.append(
            f"with {len(ledger.prior_releases)} other release(s) of {ledger.header['dataset_id']}: epsilon "
            f"{ledger.epsilon_of_all_releases():.4f}{limit}"
        )
        lines += [
            f"and at delta {delta:.3e}: epsilon {ledger.epsilon_of_all_releases(delta=delta):.4f}"
            f" (--dataset_epsilon {epsilon:g})"
            for epsilon, delta in ledger.dataset_bounds
            if delta != ledger.target_delta
        ]
    return lines


def signals_in_words(ledger: PrivacyLedger, rows: Mapping[str, LedgerRow], queries: Sequence[Query]) -> list[str]:
    """Signal to noise of one answer of each query: `r q N / (sigma K sqrt(D))`, for K classes of one size and a
    mean feature of r clip norms. Only r is unknown before the images are asked: at most 1, and smaller the more images
    differ."""
    lines = []
    facts = ledger.header["public_facts"]  # a receipt's plan has none
    for query in queries if ledger.has_guarantee else ():
        values = query.num_values
        if values is None:
            continue
        values *= facts.get("image_shape", (1,))[0] if query.by_channel else 1
        classes = len(facts.get("class_names") or ("",)) if query.by_label else 1
        row = rows[query.name]
        number = ledger.num_images * row.sampling_probability
        ratio = number / (row.noise_multiplier * classes * math.sqrt(values))
        lost = ratio < DROWNED and "dp_sgd" not in rows  # DP-SGD learns beside what is lost here
        drowns = " -- it drowns in noise: fewer features, fewer classes or more epsilon" if lost else ""
        lines.append(
            f"signal to noise of {query.name}: {ratio:.3g} r = {number:.10g} r / ({row.noise_multiplier:.4g} * "
            f"{classes} classes * sqrt({values:,})), r <= 1 the norm of a class's mean feature{drowns}"
        )
    return lines


def memory_of_queries(queries: Sequence[Query], image_shape: Sequence[int], num_classes: int, num_made: int) -> int:
    """
    Bytes of the largest answer, of the images and features that are computed at once, and of the images that are made.

    Args:
        queries (`Sequence[Query]`): What is asked.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`): 1 without classes.
        num_made (`int`): Images that are made of the answers.
    """
    pixels, most = math.prod(image_shape), 0
    for query in queries:
        values = (query.num_values or 0) * (image_shape[0] if query.by_channel else 1)
        at_once = min(AT_ONCE, max(1, VALUES_AT_ONCE // max(values, pixels)))
        answer = 8 * (ANSWERS + query.repeats - 1) * values * (num_classes if query.by_label else 1)
        most = max(most, answer + 4 * at_once * (COPIES * values + pixels))
    return most + num_made * pixels * 5  # of whole numbers, and of real ones before


def limits_in_words(ledger: PrivacyLedger) -> list[str]:
    """Where the data set's bound is not what this run asked for, or leaves less than it asked for."""
    lines, bound, asked = [], ledger.dataset_epsilon, ledger.header["dataset_epsilon"]
    if bound is not None and asked is not None and bound < asked:
        lines.append(
            f"--dataset_epsilon {asked:g} has no effect: an earlier release was promised {bound:g}, which holds for "
            "all."
        )
    if ledger.dataset_bounds and ledger.epsilon() < NEARLY * ledger.target_epsilon:
        lines.append(
            f"this release gets epsilon {ledger.epsilon():.4g} and not --target_epsilon {ledger.target_epsilon:g}, "
            f"for with {others_in_words(ledger)} no more is left of {bound_in_words(ledger.tightest_bound(), ledger)}."
        )
    return lines


def aligned(table: Iterable[list[str]]) -> list[str]:
    """The lines of a table: its first column flush left, the others flush right."""
    table = list(table)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in table
    ]
