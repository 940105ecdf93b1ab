# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A plan whose release `verify` would refuse is refused first, while nothing is spent. No torch, but for PRV."""

import math
from collections.abc import Sequence
from typing import Any

from .. import verify
from ..accounting import epsilon as accounting
from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS
from ..errors import UsageError
from ..queries.query import Query
from ..release.receipt import accounting_facts


# PLD's epsilon may be below `FINE_BELOW` where another accountant's is below this, and then its grid is finer.
MAYBE_FINE = 0.15


def refuse_unverifiable(ledger: PrivacyLedger, queries: Sequence[Query]) -> None:
    """Refuses what `verify` would refuse, by its own checks and bounds.

    Epsilon is not computed again as `verify` computes it, for the ledger counted it with the same library.

    Args:
        ledger (`PrivacyLedger`): In memory, with all rows of the plan.
        queries (sequence of `Query`): What the run asks before DP-SGD, for the remedy.

    Raises:
        UsageError: The release of this plan would not verify.
    """
    facts = accounting_facts(ledger)
    if facts["prior_releases"]:
        facts["dataset"] = {}  # what it costs in sum is checked below
    for event in facts["events"]:
        alone = {**event, "first_step": 0} if "first_step" in event else event
        for problem in verify.check_numbers({**facts, "events": [alone], "prior_releases": []}):
            sigma, steps = event["noise_multiplier"], event["steps_reserved"]
            what = f"{event['stage']} would have noise multiplier {sigma:.4g} and {steps} step(s)"
            why = problem.replace("The receipt's field events.0.", "its ").replace("Event 0 cannot be accounted: ", "")
            raise _refusal(f"{what}: {why}", _remedy(ledger, queries, event))
    for problem in verify.check_numbers(facts):
        raise _refusal(problem, "lower --max_train_steps, or give other data another --dataset_id")
    _check_claims(ledger, facts)


def _check_claims(ledger: PrivacyLedger, facts: dict[str, Any]) -> None:
    delta = f"--target_delta {ledger.target_delta:g}"
    claims = {ledger.accountant: ledger.epsilon(), "rdp": ledger.epsilon("rdp")}
    own = verify.counted(facts["events"])
    distances = [(_distance(event), event.steps) for event in own]
    if sum(distance * steps for distance, steps in distances) <= ledger.target_delta:
        claims["pld"] = 0.0
    elif max(distances)[0] <= ledger.target_delta:
        claims["pld"] = ledger.epsilon("pld")
    for accountant, claim in claims.items():
        if not 0 < claim < verify.LARGEST_CLAIM:
            problem = (
                f"Epsilon by {accountant.upper()} would be {claim:g} at {delta}, which is no finite number above 0."
            )
            raise _refusal(problem, "lower --target_delta, or raise --train_batch_size")
    together = verify.counted_together(facts)
    interval = accounting.interval_of(ledger.target_epsilon)
    if min(claims.values()) < MAYBE_FINE:
        interval = accounting.PLD_FINE_INTERVAL
    for counted, remedy in ((own, "lower --target_epsilon"), (together, "lower --dataset_epsilon")):
        try:
            rough = verify.rough_epsilon(ledger.target_delta, counted)
            verify.refuse_dear(counted, verify.widened(interval, rough))
        except ValueError as error:
            raise _refusal(f"Epsilon cannot be computed at {delta}: {error}.", remedy) from None


def _distance(event: verify.Counted) -> float:
    """Total variation distance of one Poisson-sampled Gaussian, `q erf(1 / (2 sqrt(2) sigma))`.

    Epsilon of a query is above 0 where delta is below this. It is 0 where delta is not below the sum over all.
    """
    return event.sampling_probability * math.erf(1 / (math.sqrt(8) * event.noise_multiplier))


def _remedy(ledger: PrivacyLedger, queries: Sequence[Query], event: dict[str, Any]) -> str:
    """Which flag to change, and in which direction."""
    stage, little = event["stage"], event["noise_multiplier"] <= verify.NOISE[0]
    if ledger.num_images > verify.MOST_COUNTED:
        number = "num_train_units" if "max_images_per_unit" in ledger.header["public_facts"] else "num_train_images"
        return f"lower --{number} to at most {verify.MOST_COUNTED}"
    if event["steps_reserved"] > verify.MOST_STEPS:
        names = {DP_SGD: "max_train_steps", TEACHERS: "max_train_steps", "restart_slack": "restart_slack"}
        return f"lower --{names.get(stage, 'num_central_images')} to at most {verify.MOST_STEPS}"
    asked = next((query for query in queries if query.name == stage and query.called), None)
    if asked is not None and asked.noise_multiplier is not None:
        return f"{'raise' if little else 'lower'} --noise_multiplier {asked.called}"
    others = "--target_epsilon or --target_delta"
    if asked is not None and asked.budget_share or stage == "evaluation_reserve":
        others = f"{'--evaluation_reserve' if asked is None else f'--budget {asked.called}'} or --target_epsilon"
    return f"{'lower' if little else 'raise'} {others}"


def _refusal(problem: str, remedy: str) -> UsageError:
    return UsageError(f"diffusers-dp verify would refuse the release of this plan: {problem.rstrip('.')}; {remedy}.")
