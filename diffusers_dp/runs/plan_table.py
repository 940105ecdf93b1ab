# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A plan for a person to read: in short, and with all details. No torch."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_file import Bound
from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..queries.query import Query


if TYPE_CHECKING:
    from .plan import Plan


DROWNED = 3  # signal to noise, if a mean feature had norm 1, below which the answer is called noise
REMEDY = "fewer features, fewer classes or more epsilon"
NEARLY = 0.99  # of --target_epsilon, which calibrated noise reaches where nothing else bounds it
HOPELESS = 0.1  # signal to noise of a step of DP-SGD below which a larger batch is advised
TITLES = {
    DP_SGD: "DP-SGD", TEACHERS: "rounds of teachers", "restart_slack": "slack for restarts",
    "evaluation_reserve": "evaluation",
}  # fmt: skip


def short_lines(plan: "Plan") -> list[str]:
    """What is asked, what share of the budget that costs, and what is promised."""
    ledger = plan.ledger
    lines = list(_short_table(plan)) if ledger.has_guarantee else []
    lines.append(
        f"together: epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}, for one of N = "
        f"{ledger.num_images:,} {plan.unit}s"
        if ledger.has_guarantee
        else _no_guarantee(ledger)
    )
    drowned = [query.title for query, *_, ratio in _signals(plan) if _is_lost(ratio, plan.rows)]
    if drowned:
        lines.append(f"drowns in noise: {', '.join(drowned)}; take {REMEDY}")
    return [
        *lines, *_needs(plan), *_others_in_words(ledger), *filter(None, [plan.about_delta]), *_limits_in_words(ledger)
    ]  # fmt: skip


def _needs(plan: "Plan") -> list[str]:
    """What queries need to show anything, of those that say so."""
    ledger, classes = plan.ledger, len(plan.ledger.header["public_facts"].get("class_names") or ("",))
    of_all = (
        query.needs(classes, ledger.num_images, plan.rows[query.name].noise_multiplier, plan.unit)
        for query in plan.queries
        if ledger.has_guarantee
    )
    return [*filter(None, of_all)]


def _short_table(plan: "Plan") -> Iterable[str]:
    """A line for each stage. Queries that differ in a closing number only, as generations do, share one."""
    titles = TITLES | {query.name: query.title for query in plan.queries}
    merged: dict[tuple[Any, ...], tuple[list[str], int, float]] = {}
    for name, share in plan.ledger.budget_shares().items():
        row, title = plan.rows[name], titles.get(name, name.replace("_", " "))
        stem, number = re.fullmatch(r"(.*?)( \d+)?", title, re.DOTALL).groups()  # type: ignore[union-attr]
        key = stem, "noise_multiplicity" in row.facts, row.sampling_probability
        numbers, steps, before = merged.get(key, ([], 0, 0.0))
        merged[key] = [*numbers, number or ""], steps + row.steps, before + share
    table = [["asked of the private images", "", "of the budget"]]
    for (stem, is_step, rate), (numbers, steps, share) in merged.items():
        last = f" to{numbers[-1]}" if len(numbers) > 1 else ""
        whom = f"all {plan.unit}s" if rate == 1 else f"about {rate * plan.ledger.num_images:,.0f} {plan.unit}s"
        what = "step" if is_step else "noisy answer"
        asked = f"1 {what} from {whom}" if steps == 1 else f"{steps:,} {what}s, each from {whom}"
        if stem == TITLES["restart_slack"]:
            asked += ", in the place of lost ones"
        table.append([f"  {stem}{numbers[0]}{last}", asked, f"{share:.1%}"])
    width = max(len(asked) for _, asked, _ in table)
    return aligned([title, asked.ljust(width), share] for title, asked, share in table)


def hopeless_step(plan: "Plan", num_parameters: int) -> str:
    """A word and the remedy, where DP-SGD drowns in noise and a larger batch would help; else nothing."""
    sampling, step = plan.sampling, plan.rows.get(DP_SGD)
    if sampling is None or step is None or step.mechanism.num_groups > 1 or sampling.sample_rate >= 0.5:
        return ""
    if not num_parameters or (ratio := plan.signal_to_noise(num_parameters)) >= HOPELESS:
        return ""
    return (
        f"hopeless: images will be noise, because a step of {sampling.expected_batch_size:,.4g} of "
        f"{sampling.num_units:,} {plan.unit}s has a signal to noise of {ratio:.2g}, below {HOPELESS:g}. Raise "
        "--train_batch_size, which takes time and not memory."
    )


def lines_of(plan: "Plan") -> list[str]:
    """All of a plan for a person to read."""
    ledger, rows = plan.ledger, plan.rows
    return [
        *_table_of_rows(ledger, rows),
        *(["noise: whole numbers, see --noise exact"] if plan.exact else []),
        *(_describe_noise(plan) if plan.noise_errors else []),
        *filter(None, [plan.about_delta]),
        *_limits_in_words(ledger),
        *_signals_in_words(plan),
        *_needs(plan),
    ]


def bound_in_words(bound: Bound, ledger: PrivacyLedger) -> str:
    """A bound of the data set, with its delta where that is not the run's own."""
    where = "" if bound.delta == ledger.target_delta else f" at delta {bound.delta:g} of another release"
    return f"--dataset_epsilon {bound.epsilon:g}{where}"


def others_in_words(ledger: PrivacyLedger) -> str:
    number = len(ledger.prior_releases)
    return f"{number} other release{'' if number == 1 else 's'} of {ledger.header['dataset_id']}"


def _table_of_rows(ledger: PrivacyLedger, rows: Mapping[str, LedgerRow]) -> list[str]:
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
        return [*lines, _no_guarantee(ledger)]
    lines.append(
        f"total ({ledger.accountant}): epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}, N "
        f"{ledger.num_images}"
    )
    return [*lines, *_others_in_words(ledger)]


def _no_guarantee(ledger: PrivacyLedger) -> str:
    return (
        "NO GUARANTEE: epsilon is infinite, for nothing gets noise (--target_epsilon inf), N "
        f"{ledger.num_images}; no release is made"
    )


def _others_in_words(ledger: PrivacyLedger) -> list[str]:
    """What this release and the others of its data set cost together."""
    if not ledger.has_guarantee or ledger.header["dataset_id"] is None:
        return []
    limit = "" if ledger.dataset_epsilon is None else f" (--dataset_epsilon {ledger.dataset_epsilon:g})"
    return [
        f"with {len(ledger.prior_releases)} other release(s) of {ledger.header['dataset_id']}: epsilon "
        f"{ledger.epsilon_of_all_releases():.4f}{limit}"
    ] + [
        f"and at delta {delta:.3e}: epsilon {ledger.epsilon_of_all_releases(delta=delta):.4f}"
        f" (--dataset_epsilon {epsilon:g})"
        for epsilon, delta in ledger.dataset_bounds
        if delta != ledger.target_delta
    ]


def _describe_noise(plan: "Plan") -> list[str]:
    """The error of each mechanism against that of independent noise, and what the one that was chosen means."""
    rows, errors, unit = plan.rows, plan.noise_errors, plan.unit
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


def _signals(plan: "Plan") -> list[tuple[Query, float, int, int, float]]:
    """Signal to noise of one answer of each query: `q N / (sigma K sqrt(D))`, for K classes of one size and a mean
    feature of norm 1. Before it come qN, K and D."""
    ledger, found = plan.ledger, []
    facts = ledger.header["public_facts"]  # a receipt's plan has none
    for query in plan.queries if ledger.has_guarantee else ():
        values = query.num_values
        if values is None:
            continue
        values *= facts.get("image_shape", (1,))[0] if query.by_channel else 1
        classes = len(facts.get("class_names") or ("",)) if query.by_label else 1
        row = plan.rows[query.name]
        number = ledger.num_images * row.sampling_probability
        found.append((query, number, classes, values, number / (row.noise_multiplier * classes * math.sqrt(values))))
    return found


def _is_lost(ratio: float, rows: Mapping[str, LedgerRow]) -> bool:
    return ratio < DROWNED and DP_SGD not in rows  # DP-SGD learns beside what is lost here


def _signals_in_words(plan: "Plan") -> list[str]:
    """Only r is unknown before the images are asked: at most 1, and smaller the more images differ."""
    return [
        f"signal to noise of {query.name}: {ratio:.3g} r = {number:.10g} r / "
        f"({plan.rows[query.name].noise_multiplier:.4g} * {classes} classes * sqrt({values:,})), r <= 1 the norm of a "
        f"class's mean feature{f' -- it drowns in noise: {REMEDY}' if _is_lost(ratio, plan.rows) else ''}"
        for query, number, classes, values, ratio in _signals(plan)
    ]


def _limits_in_words(ledger: PrivacyLedger) -> list[str]:
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
