# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run will ask and what it will cost, worked out before an image is read. Nothing here loads torch, but for
PRV.

A plan whose release `verify` would refuse is refused first, while nothing is spent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from .. import verify
from ..accounting import epsilon as accounting
from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..data.images import PublicFacts
from ..errors import BudgetExceeded, UsageError
from ..mechanisms import sampled
from ..methods.config import SamplingFacts, sampling_of
from ..methods.flag import MOST
from ..methods.flags import DPSGDConfig, TrainingConfig
from ..queries.query import Query
from ..release.receipt import accounting_facts
from ..verify import ACCOUNTANTS, delta_in_words, publishes_records
from .folder import read_identity
from .noise import Noise, chosen_mechanism, kept_row, kept_step, refuse_the_other_kind, resumed_step, step_of
from .plan_table import bound_in_words, lines_of, others_in_words, short_lines
from .run_ledger import new_ledger


LEAST_SHARE = 0.1  # of --target_epsilon that the other releases of a data set must leave
BYTES_OF_A_VALUE = 4  # of an image that is made, at least


@dataclass(frozen=True)
class Plan:
    """The queries of a run in their order, and what follows from them.

    Args:
        sampling (`SamplingFacts`, *optional*): DP-SGD's sample rate and divisor, of a method that has it.
        rows (`dict[str, LedgerRow]`): `central_images` and `frequency_features`, where the curriculum asks them,
            `evaluation_reserve`, with that flag, `dp_sgd`, and `restart_slack`, with that flag: more steps of the same
            kind, which are taken only if others are lost.
        ledger (`PrivacyLedger`): In memory; it holds these rows and nothing else.
        queries (`tuple[Query, ...]`): What is asked, in this order, and before DP-SGD where the method has it. Those
            that get what all others leave have the last of the rows.
        noise_errors (`dict[int, float]`): How much noise reaches the weights with each mechanism that was looked at,
            see `chosen_mechanism`.
        exact (`bool`): `--noise exact`.
    """

    sampling: SamplingFacts | None
    rows: dict[str, LedgerRow]
    ledger: PrivacyLedger
    queries: tuple[Query, ...] = ()
    noise_errors: dict[int, float] = field(default_factory=dict)
    exact: bool = False

    @property
    def step(self) -> LedgerRow | None:
        """DP-SGD, or the rounds of teachers; `None` of a plan without either."""
        return self.rows.get(DP_SGD) or self.rows.get(TEACHERS)

    @property
    def epsilon(self) -> float:
        """The total, by the run's accountant."""
        return self.ledger.epsilon()

    @property
    def unit(self) -> str:
        """What N and the batch count: images, or units of several."""
        return "image" if self.ledger.header["unit_of_privacy"] == "image" else "unit"

    @property
    def summary(self) -> str:
        """What is asked, what that costs, and what is promised."""
        return "\n".join(short_lines(self))

    @property
    def table(self) -> str:
        """All of it for a person to read."""
        return "\n".join(lines_of(self))

    @property
    def about_delta(self) -> str:
        """What a large delta means, see `delta_in_words`; nothing of a run without guarantee."""
        ledger = self.ledger
        if not ledger.has_guarantee:
            return ""
        return delta_in_words(ledger.target_delta, ledger.num_images, ledger.header["unit_of_privacy"])

    def epsilon_by_accountant(self) -> dict[str, float | None]:
        """The total by each accountant, in the order of `ACCOUNTANTS`; `None` by one that cannot count the plan's
        sampling, or its delta.

        PRV loads Opacus, and with it torch.
        """
        totals: dict[str, float | None] = {}
        for name in ACCOUNTANTS:
            try:
                totals[name] = self.ledger.epsilon(accountant=name)
            except UsageError:
                totals[name] = None
        return totals

    def signal_to_noise(self, num_parameters: int) -> float:
        """`qN C / (sigma C sqrt(d))`: how much of one noisy gradient sum of DP-SGD can be signal.

        The signal is the norm of the expected qN gradients if all have the full clip norm C and one direction, which
        no real ones reach; the noise is the root mean square of the norm of d independent N(0, (sigma C)^2).

        Args:
            num_parameters (`int`): d, the number of trained parameters.
        """
        if not self.ledger.has_guarantee or self.sampling is None:
            return math.inf
        return self.sampling.expected_batch_size / (self.noise_of_a_step * math.sqrt(num_parameters))

    @property
    def noise_against_independent(self) -> float:
        """How much noise reaches the weights, as a part of what independent noise of the same cost would be."""
        chosen = self.rows[DP_SGD].mechanism.num_groups
        return self.noise_errors[chosen] / self.noise_errors[1] if chosen > 1 else 1.0

    @property
    def noise_of_a_step(self) -> float:
        """Standard deviation of one step's own noise, in clip norms: the noise multiplier, or more where noise is
        correlated."""
        return self.rows[DP_SGD].mechanism.noise_of_a_step


@dataclass(frozen=True)
class _Request:
    """What the flags ask of a plan.

    Args:
        ledger (`PrivacyLedger`): In memory; what is planned must fit into it.
        ids (`str`): What the id of an image is, see `mechanisms.groups.Grouped`.
        queries (`tuple[Query, ...]`): As in `Plan`.
        of_door (`dict`): What the door makes of every mechanism.
        dp_sgd (`DPSGDConfig`, *optional*), sampling (`SamplingFacts`, *optional*): Settings of DP-SGD.
        kept (`Noise`, *optional*): Noise of the first start, of a run that goes on after it asked something.
        shares (`dict[str, float]`), takes_rest (`str`): Shares of the budget by their flags, and what gets the rest,
            for messages.
    """

    ledger: PrivacyLedger
    ids: str
    queries: tuple[Query, ...]
    of_door: dict[str, Any]
    dp_sgd: DPSGDConfig | None
    sampling: SamplingFacts | None
    kept: Noise | None
    shares: dict[str, float]
    takes_rest: str

    @property
    def rest(self) -> list[Query]:
        """The queries that share what all others leave, of a method without DP-SGD."""
        rest = [query for query in self.queries if query.noise_multiplier is None and query.budget_share is None]
        if rest and self.dp_sgd is not None or len({query.sample_rate for query in rest}) > 1:
            raise ValueError("What is left goes to queries of one sample rate, and none beside DP-SGD.")
        return rest

    def rows_of_the_rest(self) -> dict[str, LedgerRow]:
        """With the one noise multiplier with which all of them together use up what the ledger has left."""
        if not (rest := self.rest):
            return {}
        mechanism = rest[0].mechanism(**self.of_door)
        sigma = self.ledger.calibrate(mechanism, sum(query.repeats for query in rest))
        return {query.name: query.row(sigma, **self.of_door) for query in rest}

    def row(self, query: Query) -> LedgerRow:
        """With the given noise multiplier, or that of the share; without a guarantee with none."""
        sigma = query.noise_multiplier if self.ledger.has_guarantee else 0.0
        if sigma is None:
            share = query.budget_share
            assert share is not None  # others get the rest
            sigma = self.ledger.calibrate_gaussian(share, query.mechanism(**self.of_door), query.repeats)
        return query.row(sigma, **self.of_door)


def plan_run(config: TrainingConfig, facts: PublicFacts) -> Plan:
    """Work out the noise of every stage: the queries' from their noise multiplier or budget share, DP-SGD's from what
    they leave of the budget.

    Raises:
        UsageError: Two queries have one name, delta is 1/N or more without `--allow_large_delta`, the queries alone
            exceed the budget, other releases of the data set leave too little of it, `verify` would refuse the
            release, or a flag is out of range.
    """
    resumes = config.resume_from_checkpoint is not None
    _refuse_one_name(config)
    judged = getattr(config, "has_judge", False)
    if not resumes and (facts.class_names or judged or not config.dry_run):  # a plan may leave out what a run needs
        config.check_facts(facts.class_names)
    _refuse_numbers_of_images(config, facts)
    sampling = sampling_of(config, facts.num_units)
    identity = read_identity(Path(config.output_dir, "private"), config.dataset_id, config.ledger_path)
    request = _Request(
        ledger=new_ledger(None, config, facts, identity), ids=facts.ids,
        queries=tuple(query.at(facts.num_units) for query in config.queries),
        of_door=config.of_door, dp_sgd=config.dp_sgd, sampling=sampling,
        kept=identity.noise if resumes and identity.asked else None,
        shares=config.asked_shares, takes_rest=config.takes_rest,
    )  # fmt: skip
    if not config.allow_large_delta:
        _refuse_large_delta(request.ledger)
    if request.kept is not None:
        return _resumed(request, request.kept)
    if not resumes:  # what goes on has spent some of it already
        _refuse_next_to_nothing(request)
    return _planned(request)


def _planned(request: _Request) -> Plan:
    ledger, rest = request.ledger, {query.name for query in request.rest}
    rows = {query.name: request.row(query) for query in request.queries if query.name not in rest}
    _refuse_over_budget(request, ledger.epsilon(extra=[*rows.values(), *ledger.set_aside]))
    for row in rows.values():
        try:
            ledger.reserve(row)
        except BudgetExceeded as error:  # of the data set: this release's was checked above
            raise UsageError(f"{error} Lower --target_epsilon, or raise the noise of the queries.") from None
    later = request.rows_of_the_rest()
    later |= {row.name: row for row in ledger.set_aside}
    errors: dict[int, float] = {}
    if (steps := request.dp_sgd) is not None and request.sampling is not None:
        mechanism, errors = chosen_mechanism(steps, request.sampling, ledger, request.ids)
        later |= _dp_sgd_rows(steps, step_of(steps, request.sampling, mechanism))
    for row in later.values():
        ledger.reserve(row)
    if ledger.has_guarantee:
        refuse_unverifiable(ledger, request.queries)
    return Plan(request.sampling, rows | later, ledger, request.queries, errors, request.of_door["exact"])


def _resumed(request: _Request, kept: Noise) -> Plan:
    """The plan of a run that goes on, with the noise of its first start. `rest_of_plan` prices what is left of it from
    the run's own ledger."""
    ledger, exact = request.ledger, request.of_door["exact"]
    refuse_the_other_kind(kept, ledger.has_guarantee, exact)
    rows = {query.name: kept_row(kept, query, request.of_door) for query in request.queries}
    if missing := kept.keys() - {*rows, DP_SGD, TEACHERS}:
        raise UsageError(
            f"This run began with the query '{min(missing)}': resume with the flags of the first start, or start "
            "another --output_dir."
        )
    rows |= {row.name: row for row in ledger.set_aside}
    ledger.set_aside = []
    if (steps := request.dp_sgd) is not None and request.sampling is not None:
        began = kept_step(kept, DP_SGD if steps.num_shares is None else TEACHERS)
        rows |= _dp_sgd_rows(steps, resumed_step(steps, request.sampling, began, request.ids))
    for row in rows.values():
        if number := ledger.affordable_steps(row, row.steps):
            ledger.reserve(replace(row, steps=number))
    return Plan(request.sampling, rows, ledger, request.queries, exact=exact)


def _refuse_one_name(config: TrainingConfig) -> None:
    """By its name a query has its row in the plan, and its stored answer. Raises `UsageError`."""
    known = {DP_SGD, TEACHERS, "restart_slack", "evaluation_reserve"}
    for query in config.queries:
        if query.name in known:
            raise UsageError(f"{config.method} plans two queries of the name '{query.name}': rename one of them.")
        known.add(query.name)


def _dp_sgd_rows(config: DPSGDConfig, step: LedgerRow) -> dict[str, LedgerRow]:
    """DP-SGD or teachers, and their slack."""
    rows = {step.name: replace(step, steps=config.max_train_steps)}
    if config.restart_slack:
        rows["restart_slack"] = replace(step, name="restart_slack", steps=config.restart_slack)
    return rows


def dp_sgd_row(config: DPSGDConfig, plan: Plan, ledger: PrivacyLedger) -> LedgerRow:
    """One step of DP-SGD as the run's ledger has it from an earlier start, or else that of the plan.

    Raises:
        IntegrityError: The earlier start had another clip norm, noise multiplicity or sampling.
        UsageError: It had other groups.
    """
    assert plan.step is not None and plan.sampling is not None  # of a `DPSGDConfig`
    row = replace(plan.step, steps=1)
    if earlier := [asked for asked in ledger.asked if asked.name == row.name]:
        ids = row.mechanism.facts.get("ids", "row")
        return resumed_step(config, plan.sampling, replace(earlier[-1], steps=1), ids)
    return row


def _refuse_large_delta(ledger: PrivacyLedger) -> None:
    """Raises `UsageError` where delta is 1/N or more, as its default is for N = 2."""
    delta, number, unit = ledger.target_delta, ledger.num_images, ledger.header["unit_of_privacy"]
    if ledger.has_guarantee and publishes_records(delta, number, unit):
        raise UsageError(
            f"--target_delta {delta:.4g} is not below 1 / {number:,} {unit}s and allows to publish some of them "
            "outright: give a smaller one, or add --allow_large_delta, and the release says so."
        )


def _refuse_next_to_nothing(request: _Request) -> None:
    """Raises `UsageError` where the data set's bounds leave less than a tenth of what is asked for to DP-SGD alone, or
    to the queries that get the rest: the release would be noise."""
    ledger = request.ledger
    if not ledger.dataset_bounds:
        return
    alone = list(request.rows_of_the_rest().values())
    if request.dp_sgd is not None and request.sampling is not None:
        steps, mechanism = request.dp_sgd.counted_steps, sampled(request.sampling.sample_rate)
        alone = [LedgerRow(DP_SGD, mechanism.with_noise(ledger.calibrate(mechanism, steps)), steps)]
    left = ledger.epsilon(extra=alone)
    if alone and left < LEAST_SHARE * ledger.target_epsilon:
        raise UsageError(
            f"{others_in_words(ledger)} {'leaves' if len(ledger.prior_releases) == 1 else 'leave'} epsilon {left:.4g} "
            f"of {bound_in_words(ledger.tightest_bound(extra=alone), ledger)}, less than a tenth of --target_epsilon "
            f"{ledger.target_epsilon:g}; lower --target_epsilon to that, or use other data."
        )


def _refuse_numbers_of_images(config: TrainingConfig, facts: PublicFacts) -> None:
    """Before the first query, because the images are made after it. Raises `UsageError`."""
    classes, values = len(facts.class_names or ("",)), math.prod(facts.image_shape)
    least = dict.fromkeys(config.drawn_by_class, classes)
    if config.evaluation_reserve is not None:
        least["num_evaluation_images"] = 2 * classes
    for name, number in least.items():
        if getattr(config, name) < number:
            each = "one image for each class" if number == classes else "two of each class"
            raise UsageError(f"--{name} is {getattr(config, name)}: give at least {number}, {each}.")
    free = None if config.dry_run else psutil.virtual_memory().available
    for names, number in ((config.made_by_class, classes), (config.drawn_by_class, 1)):
        for name in names:
            if getattr(config, name) is not None:
                _refuse_many_images(name, getattr(config, name), number, values, free)


def _refuse_many_images(flag: str, value: int, classes: int, values_of_an_image: int, free: int | None) -> None:
    """Raises `UsageError` where no release, or not this machine's memory, can hold the images that a flag asks for."""
    number = value * classes
    what = f"--{flag} {value} makes {number:,} images{f' of {classes} classes' if classes > 1 else ''}"
    if number > MOST:
        raise UsageError(f"{what}; give fewer, so that there are at most {MOST:,}.")
    needed = number * values_of_an_image * BYTES_OF_A_VALUE
    if free is not None and needed > free:
        raise UsageError(f"{what}, which take {needed / 1e9:,.1f} GB of memory, more than is free here; give fewer.")


def _refuse_over_budget(request: _Request, spent: float) -> None:
    """Raises `UsageError` where the queries leave nothing. A higher target helps only those of absolute noise, because
    noise that comes from a share scales with the target."""
    ledger = request.ledger
    target, takes_rest = ledger.target_epsilon, request.sampling is not None or bool(request.rest)
    if not ledger.has_guarantee or spent < target or (spent == target and not takes_rest):
        return
    absolute = dict.fromkeys(query.called for query in request.queries if query.noise_multiplier is not None)
    shares = [f"{flag} ({share:g})" for flag, share in request.shares.items()]
    remedies = [f"raise {' and '.join(f'--noise_multiplier {called}' for called in absolute)}"] if absolute else []
    if shares:
        remedies.append(f"lower {' or '.join(shares)}")
    elif math.isfinite(spent):
        remedies.insert(0, f"raise it above {spent:.4g}, the smallest that these queries can reach")
    cost = "more than any epsilon, let alone"
    if math.isfinite(spent):
        cost = f"epsilon {spent:.4g}, {spent - target:.4g} more than"
    raise UsageError(
        f"The queries alone cost {cost} --target_epsilon {target:g}, which leaves nothing to "
        f"{request.takes_rest}: {', or '.join(remedies)}."
    )


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
