# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run will ask and what it will cost, worked out before an image is read. Nothing here loads torch, but for
PRV."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..data.images import PublicFacts
from ..errors import BudgetExceeded, UsageError
from ..mechanisms import sampled
from ..methods.bounds import check_images
from ..methods.config import SamplingFacts, sampling_of, target_delta
from ..methods.flags import DPSGDConfig, TrainingConfig
from ..queries.query import Query
from ..verify import delta_in_words, publishes_records
from ..words import ACCOUNTANTS
from .identity import read_identity
from .kept_noise import Noise, kept_row, kept_step, refuse_the_other_kind
from .noise_of_steps import chosen_mechanism, describe_noise, resumed_step, step_of
from .plan_table import bound_in_words, limits_in_words, others_in_words, signals_in_words, table_of_rows
from .query_slack import AGAIN, dearest, refuse_slack, slack_in_words
from .run_ledger import new_ledger
from .verifiable import refuse_unverifiable


EXACT_IN_WORDS = "noise: whole numbers, see --noise exact"
LEAST_SHARE = 0.1  # of --target_epsilon that the other releases of a data set must leave


@dataclass(frozen=True)
class Plan:
    """The queries of a run in their order, and what follows from them.

    Args:
        sampling (`SamplingFacts`, *optional*): DP-SGD's sample rate and divisor, of a method that has it.
        rows (`dict[str, LedgerRow]`): `central_images` and `frequency_features`, where the curriculum asks them,
            `evaluation_reserve`, with that flag, `dp_sgd`, and `restart_slack`, with that flag: more steps of the same
            kind, which are taken only if others are lost. With `--query_slack`, `again_...`: queries that are
            asked once more only if their answer is lost.
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
    def table(self) -> str:
        """All of it for a person to read."""
        about_delta = [self.about_delta] if self.about_delta else []
        chosen = describe_noise(self.rows, self.noise_errors, self.unit) if self.noise_errors else []
        signals = signals_in_words(self.ledger, self.rows, self.queries)
        noise = [EXACT_IN_WORDS] if self.exact else []
        slack = slack_in_words(self.ledger, self.rows) if self.ledger.has_guarantee else []
        asked = [*table_of_rows(self.ledger, self.rows), *slack, *noise, *chosen]
        return "\n".join([*asked, *about_delta, *limits_in_words(self.ledger), *signals])

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

    def epsilon_against_steps(self, steps: Sequence[int], accountant: str) -> list[float]:
        """The total after each of these numbers of DP-SGD steps (0 or more), with the noise multipliers as planned.

        Raises:
            UsageError: The accountant cannot count the plan's sampling.
        """
        budget = self.ledger
        empty = PrivacyLedger(
            None, target_epsilon=budget.target_epsilon, target_delta=budget.target_delta, num_images=budget.num_images
        )
        step = self.step
        assert step is not None
        asked = [row for name, row in self.rows.items() if name not in (step.name, "restart_slack")]
        return [empty.epsilon(accountant, extra=asked + ([replace(step, steps=n)] if n else [])) for n in steps]

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


def plan_run(config: TrainingConfig, facts: PublicFacts) -> Plan:
    """Work out the noise of every stage: the queries' from their noise multiplier or budget share, DP-SGD's from what
    they leave of the budget.

    Raises:
        UsageError: Two queries have one name, delta is 1/N or more without `--allow_large_delta`, the queries alone
            exceed the budget, other releases of the data set leave too little of it, `verify` would refuse the
            release, or a flag is out of range.
    """
    _refuse_one_name(config)
    sampling = sampling_of(config, facts.num_units)
    if config.has_guarantee and not config.allow_large_delta:
        _refuse_large_delta(target_delta(config, facts.num_units), facts.num_units, config.unit_of_privacy)
    identity = read_identity(Path(config.output_dir, "private"), config.dataset_id, config.ledger_path)
    ledger = new_ledger(None, config, facts, identity)
    kept = identity.noise if identity.asked and config.resume_from_checkpoint is not None else None
    left = _left_of_dataset(config, ledger, sampling) if kept is None else config.target_epsilon
    if kept is not None:
        refuse_the_other_kind(kept, config.has_guarantee, config.is_exact)
    rows = {}
    if not config.dry_run and config.resume_from_checkpoint is None:  # a plan may leave out what a run needs
        config.check_facts(facts.class_names)
    _refuse_fewer_than_classes(config, len(facts.class_names or ("",)))
    _refuse_too_many_images(config, facts)
    rest = _queries_of_the_rest(config)
    for asked in config.queries:
        if kept is not None:
            rows[asked.name] = kept_row(kept, asked, config.of_door)
        elif asked.name not in {query.name for query in rest}:
            rows[asked.name] = _query_row(config, asked, ledger)
    if kept is not None:
        return _resumed(config, facts, ledger, sampling, rows, kept)
    spent = ledger.epsilon(extra=[*rows.values(), *ledger.set_aside])
    takes_rest = sampling is not None or bool(rest)
    if ledger.has_guarantee and (spent >= config.target_epsilon if takes_rest else spent > config.target_epsilon):
        fixed = [rows[asked.name] for asked in config.queries if asked.noise_multiplier is not None]
        raise UsageError(_over_budget(config, spent, ledger.epsilon(extra=fixed)))
    slack = _slack(config, rows, rest, ledger)
    of_rest = {AGAIN + query.name for query in rest}  # they get what the slack leaves
    aside = [row for row in slack if row.name not in of_rest]
    refuse_slack(config.query_slack, aside, ledger, [*rows.values(), *ledger.set_aside])
    for row in rows.values():
        try:
            ledger.reserve(row)
        except BudgetExceeded as error:  # of the data set: this release's was checked above
            raise UsageError(
                f"{error} Lower --target_epsilon towards {left:.4g}, which is left, or raise the noise multipliers of "
                "the queries."
            ) from None
    later = _rows_of_the_rest(config, rest, slack, ledger)
    ledger.set_aside += [_as_planned(row, later) for row in slack]
    later |= {row.name: row for row in ledger.set_aside}
    errors: dict[int, float] = {}
    if (steps := config.dp_sgd) is not None and sampling is not None:
        mechanism, errors = chosen_mechanism(steps, sampling, ledger, facts.ids)
        later |= _dp_sgd_rows(steps, step_of(steps, sampling, mechanism))
    for row in later.values():
        ledger.reserve(row)
    rows |= later
    if ledger.has_guarantee:
        refuse_unverifiable(ledger, config.queries)
    return Plan(sampling, rows, ledger, config.queries, errors, config.is_exact)


def _resumed(
    config: TrainingConfig,
    facts: PublicFacts,
    ledger: PrivacyLedger,
    sampling: SamplingFacts | None,
    rows: dict[str, LedgerRow],
    kept: Noise,
) -> Plan:
    """The plan of a run that goes on, with the noise of its first start. `rest_of_plan` prices what is left of it from
    the run's own ledger."""
    rows |= {row.name: row for row in ledger.set_aside}
    ledger.set_aside = []
    if (steps := config.dp_sgd) is not None and sampling is not None:
        began = kept_step(kept, DP_SGD if steps.num_shares is None else TEACHERS)
        rows |= _dp_sgd_rows(steps, resumed_step(steps, sampling, began, facts.ids))
    for row in rows.values():
        if number := ledger.affordable_steps(row, row.steps):
            ledger.reserve(replace(row, steps=number))
    return Plan(sampling, rows, ledger, config.queries, exact=config.is_exact)


def _slack(
    config: TrainingConfig, rows: dict[str, LedgerRow], rest: Sequence[Query], ledger: PrivacyLedger
) -> list[LedgerRow]:
    """What `--query_slack` keeps budget for; of queries that get the rest with the noise that they would have
    without it."""
    if not config.query_slack or not ledger.has_guarantee:
        return []
    known = {**rows, **{row.name: row for row in ledger.set_aside}}
    if rest:
        fixed = PrivacyLedger(
            None, target_epsilon=ledger.target_epsilon, target_delta=ledger.target_delta, num_images=ledger.num_images
        )
        fixed.set_aside = list(known.values())
        known |= _rows_of_the_rest(config, rest, (), fixed)
    return dearest(config.query_slack, known.values(), ledger)


def _as_planned(again: LedgerRow, rows: dict[str, LedgerRow]) -> LedgerRow:
    """A repeated query with the noise multiplier that it has in the plan."""
    row = rows.get(again.name.removeprefix(AGAIN), again)
    return replace(again, mechanism=row.mechanism)


def _refuse_one_name(config: TrainingConfig) -> None:
    """By its name a query has its row in the plan, and its stored answer. Raises `UsageError`."""
    known = {DP_SGD, TEACHERS, "restart_slack", "evaluation_reserve", f"{AGAIN}evaluation_reserve"}
    for query in config.queries:
        if query.name in known:
            raise UsageError(f"{config.method} plans two queries of the name '{query.name}': rename one of them.")
        known |= {query.name, AGAIN + query.name}


def _queries_of_the_rest(config: TrainingConfig) -> list[Query]:
    """The queries that share what all others leave, of a method without DP-SGD."""
    rest = [query for query in config.queries if query.noise_multiplier is None and query.budget_share is None]
    if rest and config.dp_sgd is not None or len({query.sample_rate for query in rest}) > 1:
        raise ValueError(f"{config.method}: what is left goes to queries of one sample rate, and none beside DP-SGD.")
    return rest


def _rows_of_the_rest(
    config: TrainingConfig, rest: Sequence[Query], slack: Sequence[LedgerRow], ledger: PrivacyLedger
) -> dict[str, LedgerRow]:
    """With the one noise multiplier with which all of them together, and their slack, use up what the ledger has
    left."""
    if not rest:
        return {}
    names = {AGAIN + query.name for query in rest}
    again = sum(row.steps for row in slack if row.name in names)
    aside, others = ledger.set_aside, [row for row in slack if row.name not in names]
    ledger.set_aside = [*aside, *others]
    mechanism = rest[0].mechanism(**config.of_door)
    sigma = ledger.calibrate(mechanism, sum(query.repeats for query in rest) + again)
    ledger.set_aside = aside
    return {query.name: query.row(sigma, **config.of_door) for query in rest}


def _query_row(config: TrainingConfig, query: Query, ledger: PrivacyLedger) -> LedgerRow:
    """With the given noise multiplier, or that of the share."""
    share, sigma = query.budget_share, query.noise_multiplier if ledger.has_guarantee else None
    mechanism = query.mechanism(**config.of_door)
    if sigma is None and share is not None:
        sigma = ledger.calibrate_gaussian(share, mechanism, query.repeats)
    if sigma is None:
        sigma = ledger.calibrate(mechanism, query.repeats)
    return query.row(sigma, **config.of_door)


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
    earlier = [asked for asked in ledger.asked if asked.name == row.name]
    if earlier:
        ids = row.mechanism.facts.get("ids", "row")
        return resumed_step(config, plan.sampling, replace(earlier[-1], steps=1), ids)
    return row


def _refuse_large_delta(delta: float, number: int, unit: str) -> None:
    """Raises `UsageError` where delta is 1/N or more, as its default is for N = 2."""
    if publishes_records(delta, number, unit):
        raise UsageError(
            f"--target_delta {delta:.4g} is not below 1 / {number:,} {unit}s and allows to publish some of them "
            "outright: give a smaller one, or add --allow_large_delta, and the release says so."
        )


def _left_of_dataset(config: TrainingConfig, ledger: PrivacyLedger, sampling: SamplingFacts | None) -> float:
    """Epsilon that a release can spend at most: what DP-SGD alone, or the queries that get the rest, would get under
    both bounds.

    Raises:
        UsageError: It is less than a tenth of what is asked for: the release would be noise. One that is resumed has
            spent some of it already, and goes on.
    """
    rest = _queries_of_the_rest(config)
    if not ledger.dataset_bounds:
        return config.target_epsilon
    if config.dp_sgd is not None and sampling is not None:
        steps = config.dp_sgd.counted_steps
        mechanism = sampled(sampling.sample_rate)
        alone = [LedgerRow(DP_SGD, mechanism.with_noise(ledger.calibrate(mechanism, steps)), steps)]
    elif rest:
        alone = list(_rows_of_the_rest(config, rest, (), ledger).values())
    else:  # what is asked is given, and fits or does not
        return config.target_epsilon
    left = ledger.epsilon(extra=alone)
    if left < LEAST_SHARE * config.target_epsilon and config.resume_from_checkpoint is None:
        raise UsageError(
            f"{others_in_words(ledger)} {'leaves' if len(ledger.prior_releases) == 1 else 'leave'} epsilon {left:.4g} "
            f"of {bound_in_words(ledger.tightest_bound(extra=alone), ledger)}, less than a tenth of --target_epsilon "
            f"{config.target_epsilon:g}; lower --target_epsilon to that, or use other data."
        )
    return left


def _refuse_fewer_than_classes(config: TrainingConfig, classes: int) -> None:
    for name in config.drawn_by_class:
        if getattr(config, name) < classes:
            raise UsageError(
                f"--{name} is {getattr(config, name)}: give at least {classes}, one image for each class."
            )
    if config.evaluation_reserve is not None and config.num_evaluation_images < 2 * classes:
        raise UsageError(
            f"--num_evaluation_images is {config.num_evaluation_images}: give at least {2 * classes}, two of each "
            "class."
        )


def _refuse_too_many_images(config: TrainingConfig, facts: PublicFacts) -> None:
    """Before the first query: what comes of the answers is made after it."""
    free = None if config.dry_run else psutil.virtual_memory().available
    classes, values = len(facts.class_names or ("",)), math.prod(facts.image_shape)
    for names, number in ((config.made_by_class, classes), (config.drawn_by_class, 1)):
        for name in names:
            if getattr(config, name) is not None:
                check_images(name, getattr(config, name), number, values, free)


def _over_budget(config: TrainingConfig, spent: float, fixed: float) -> str:
    """What to do about queries that leave nothing. A higher target helps only where some of their noise is absolute,
    for noise that comes from a share scales with the target; a smaller share helps only where those of absolute noise,
    which cost epsilon `fixed`, leave anything."""
    absolute = dict.fromkeys(asked.called for asked in config.queries if asked.noise_multiplier is not None)
    raised = " and ".join(f"--noise_multiplier {called}" for called in absolute)
    shares = config.asked_shares
    lowered = " or ".join(shares)
    target = f"--target_epsilon {config.target_epsilon:g}"
    if not absolute:
        given = " and ".join(f"{flag} ({share:g})" for flag, share in shares.items())
        together = "are too large together" if len(shares) > 1 else "is too large"
        return f"{given} {together}, they leave nothing of {target} to {config.takes_rest}: lower {lowered}."
    if lowered and fixed >= config.target_epsilon:
        if not math.isfinite(fixed):
            return f"The query of {raised} alone costs more than any epsilon, let alone {target}: raise {raised}."
        return (
            f"The query of {raised} alone costs epsilon {fixed:.4g}, {fixed - config.target_epsilon:.4g} more than "
            f"{target}: raise it well above {fixed:.4g}, or raise {raised}."
        )
    if not math.isfinite(spent):
        cost = f"The queries alone cost more than any epsilon, let alone {target}"
    else:
        cost = f"The queries alone cost epsilon {spent:.4g}, {spent - config.target_epsilon:.4g} more than {target}"
    if lowered:
        return f"{cost}: raise {raised} or lower {lowered}."
    if not math.isfinite(spent):
        return f"{cost}: raise {raised}."
    return f"{cost}: raise it above {spent:.4g}, the smallest that these queries can reach, or raise {raised}."
