# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The plan: never over the target, shares as asked, and refusals that name the way out."""

import math
import re
from dataclasses import replace

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant

from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.runs.dp_sgd import last_affordable_step
from diffusers_dp.runs.folder import RunIdentity
from diffusers_dp.runs.plan import dp_sgd_row, plan_run
from diffusers_dp.runs.run_ledger import new_ledger


FACTS = PublicFacts(1437, (1, 8, 8), tuple("0123456789"))


def plan(**flags):
    config = FETAProConfig(**{"accountant": "rdp", "max_train_steps": 60, "train_batch_size": 1024, **flags})
    return config, plan_run(config, FACTS)


def filled(config, rows):
    ledger = new_ledger(None, config, FACTS)
    for row in rows.values():
        ledger.reserve(row)
    return ledger


def independent_epsilon(rows, delta):
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for row in rows.values():
        query = dp.GaussianDpEvent(row.noise_multiplier)
        if row.sampling_probability < 1:
            query = dp.PoissonSampledDpEvent(row.sampling_probability, query)
        accountant.compose(query, row.steps)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("target", [0.5, 1.0, 10.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_the_total_meets_the_target_and_uses_it(target):
    """By the plan's own account (RDP) and by an independent one (PLD, which is never above it)."""
    config, result = plan(target_epsilon=target)
    assert 0.99 * target <= result.epsilon <= target
    assert filled(config, result.rows).epsilon() == pytest.approx(result.epsilon)
    assert independent_epsilon(result.rows, result.sampling.target_delta) <= target
    assert f"epsilon {result.epsilon:.4f}" in result.table and all(name in result.table for name in result.rows)


@pytest.mark.parametrize("target", [1.0, 10.0])
def test_shares_are_close_to_those_asked(target):
    config, result = plan(target_epsilon=target, budget="central_images=0.1,frequency_features=0.3")
    shares = filled(config, result.rows).budget_shares()
    assert shares["central_images"] == pytest.approx(0.1, rel=0.35)
    assert shares["frequency_features"] == pytest.approx(0.3, rel=0.2)
    assert sum(shares.values()) == pytest.approx(1)
    assert f"{shares['frequency_features']:.1%}" in result.table
    assert "RDP spent" in result.table and "share" not in result.table, "not the flag's, though close to it"


def test_all_moments_together_cost_the_share_of_the_frequency_features():
    config, result = plan(
        auxiliary_features="moments", curriculum="frequency", num_parts=2, budget="moments=0.3"
    )  # fmt: skip
    shares = filled(config, result.rows).budget_shares()
    assert list(shares) == [*(query.name for query in config.moment_queries), "dp_sgd"]
    assert shares["covariances"] == pytest.approx(0.75 * 0.3, rel=0.2) and shares["dp_sgd"] == pytest.approx(0.7, 0.1)


def test_noise_multipliers_are_taken_as_given():
    _, result = plan(noise_multiplier="central_images=7,frequency_features=9", num_central_images=3)
    assert result.rows["central_images"].noise_multiplier == 7.0 and result.rows["central_images"].steps == 3
    assert result.rows["frequency_features"].noise_multiplier == 9.0
    assert result.rows["dp_sgd"].steps == 60 and result.rows["dp_sgd"].sampling_probability == 1024 / 1437


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_queries_over_the_budget_are_refused(accountant):
    """By how much, which flags, and the smallest reachable epsilon: a target just above it works."""
    flags = {"accountant": accountant, "noise_multiplier": "central_images=3,frequency_features=2"}
    with pytest.raises(UsageError) as refusal:
        plan(target_epsilon=1.0, **flags)
    text = str(refusal.value)
    for flag in ("--target_epsilon", "--noise_multiplier central_images", "--noise_multiplier frequency_features"):
        assert flag in text
    cost, excess, smallest = map(
        float, re.search(r"epsilon ([\d.]+), ([\d.]+) more .* above ([\d.]+),", text).groups()
    )
    assert cost == smallest and excess == pytest.approx(cost - 1, abs=1e-3)
    assert plan(target_epsilon=smallest * 1.02, **flags)[1].epsilon <= smallest * 1.02
    with pytest.raises(UsageError):
        plan(target_epsilon=smallest * 0.99, **flags)


def test_a_delta_too_small_for_an_accountant_is_refused_by_its_flag_and_has_no_finite_total():
    tiny = {"target_delta": 1e-20, "curriculum": "none", "max_train_steps": 1}
    with pytest.raises(
        UsageError, match="--accountant pld finds no .* epsilon 10 at delta 1e-20: raise --target_delta"
    ):
        plan(accountant="pld", **tiny)
    totals = plan(**tiny)[1].epsilon_by_accountant()
    assert 9.9 < totals["rdp"] <= 10 and totals["pld"] == totals["prv"] == math.inf


def test_dp_sgd_gets_what_the_queries_left():
    """The row of a step has the plan's noise, and on resume that of the ledger, whatever the flags say then."""
    config, result = plan()
    ledger = filled(config, {name: row for name, row in result.rows.items() if name != "dp_sgd"})
    row = dp_sgd_row(config, result, ledger)
    assert row.noise_multiplier == pytest.approx(result.rows["dp_sgd"].noise_multiplier, rel=1e-6)
    assert row.query["normaliser"] == result.sampling.normaliser == 1024
    ledger.reserve(row)
    again, other = plan(max_train_steps=90)
    assert dp_sgd_row(again, other, ledger).noise_multiplier == row.noise_multiplier


@pytest.fixture
def release_of_scans(tmp_path):
    """Plans a release of one data set in a shared ledger, or writes down that it was made, at epsilon 2 of 2.4."""
    flags = {
        "curriculum": "none",
        "target_epsilon": 2.0,
        "dataset_id": "scans",
        "ledger_dir": str(tmp_path / "ledgers"),
    }
    flags |= {"target_delta": 1e-5, "dataset_epsilon": 2.4}

    def release(name, made=False, **changes):
        config, result = plan(**{**flags, **changes, "output_dir": str(tmp_path / name)})
        if made:
            ledger = new_ledger(config.ledger_path, config, FACTS, RunIdentity("scans", name, str(config.ledger_path)))
            ledger.reserve(result.rows["dp_sgd"])
            ledger.close()
        return result

    return release


def test_a_release_that_gets_less_because_of_others_says_so(release_of_scans):
    assert "this release gets" not in release_of_scans("first", made=True).table
    second = release_of_scans("second")
    assert second.epsilon < 1.7
    assert (
        f"this release gets epsilon {second.epsilon:.4g} and not --target_epsilon 2, for with 1 other release of "
        "scans no more is left of --dataset_epsilon 2.4."
    ) in second.table
    assert "this release gets" not in release_of_scans("second", target_epsilon=0.5).table


def test_next_to_nothing_is_refused(release_of_scans):
    """The third release would be trained with hardly any budget. What is named as left can be asked for."""
    bounds = {"target_epsilon": 1.0, "dataset_epsilon": 1.2}
    for name in ("first", "second"):
        release_of_scans(name, made=True, **bounds)
    with pytest.raises(UsageError) as refusal:
        release_of_scans("third", curriculum="spatial,frequency", **bounds)
    left = re.search(
        r"2 other releases of scans leave epsilon ([\d.e-]+) of --dataset_epsilon 1.2, .* lower "
        "--target_epsilon to that",
        str(refusal.value),
    )
    assert "or use other data" in str(refusal.value)
    assert release_of_scans("third", **{**bounds, "target_epsilon": float(left[1])}).epsilon <= float(left[1])
    # Spent some already: goes on with what is left.
    release_of_scans("third", resume_from_checkpoint="latest", **bounds)


def test_a_release_at_a_larger_delta_keeps_what_an_earlier_one_was_promised_at_its_own(release_of_scans):
    """The second one is granted what the first one's bound leaves at the first one's delta, and the plan says so."""
    first = release_of_scans("first", made=True, target_delta=1e-6)
    flags = {"target_delta": 1e-2, "dataset_epsilon": None, "allow_large_delta": True}
    second = release_of_scans("second", **flags)
    both = {name: result.rows["dp_sgd"] for name, result in (("first", first), ("second", second))}
    assert 2.39 < independent_epsilon(both, 1e-6) <= 2.4
    assert second.ledger.epsilon_of_all_releases() == pytest.approx(independent_epsilon(both, 1e-2), abs=1e-4)
    assert re.search(
        r"^and at delta 1.000e-06: epsilon 2\.(39|40)\d\d \(--dataset_epsilon 2.4\)$", second.table, re.MULTILINE
    )
    assert "no more is left of --dataset_epsilon 2.4 at delta 1e-06 of another release." in second.table
    refused = "--dataset_epsilon 2.4 at delta 1e-06 of another release, less than a tenth of --target_epsilon 40"
    with pytest.raises(UsageError, match=refused):
        release_of_scans("second", **flags, target_epsilon=40.0)


@pytest.mark.parametrize("curriculum", ["none", pytest.param("spatial,frequency", marks=pytest.mark.slow)])
def test_what_is_reserved_for_evaluation_is_left_after_dp_sgd(curriculum):
    flags = {"target_epsilon": 1.0, "curriculum": curriculum, "accountant": "pld"}
    config, reserving = plan(**flags, evaluation_reserve=0.1)
    later = reserving.rows["evaluation_reserve"]
    assert later.query["sensitivity"] == 3**0.5, "as it is asked"
    assert reserving.ledger.budget_shares()["evaluation_reserve"] == pytest.approx(0.1, rel=0.35)
    assert "evaluation_reserve" in reserving.table and reserving.epsilon <= 1
    for reserve in (0.1, None):
        config, result = plan(**flags, evaluation_reserve=reserve)
        ledger = new_ledger(None, config, FACTS)
        for name in result.rows.keys() - {"dp_sgd", "evaluation_reserve"}:
            ledger.reserve(result.rows[name])
        step = dp_sgd_row(config, result, ledger)
        assert step.noise_multiplier == pytest.approx(result.rows["dp_sgd"].noise_multiplier, rel=1e-3)
        assert (
            ledger.affordable_steps(step, 1000) < 63
        )  # lost steps, which stay spent, are not paid from the reserve either
        ledger.reserve(replace(step, steps=config.max_train_steps))
        asked = dict(enumerate(ledger.asked))
        if reserve:
            assert 0.975 < independent_epsilon({**asked, "later": later}, ledger.target_delta) <= 1
            ledger.reserve(later)
        else:
            assert independent_epsilon({**asked, "later": later}, ledger.target_delta) > 1
            with pytest.raises(BudgetExceeded):
                ledger.reserve(later)


def test_what_was_asked_out_of_the_reserve_is_not_set_aside_again(tmp_path):
    config, result = plan(curriculum="none", evaluation_reserve=0.1, output_dir=str(tmp_path))
    ledger = new_ledger(config.ledger_path, config, FACTS)
    assert [row.name for row in ledger.set_aside] == ["evaluation_reserve"]
    ledger.reserve(result.rows["evaluation_reserve"])
    ledger.close()
    assert new_ledger(config.ledger_path, config, FACTS).set_aside == []


def test_public_facts_of_a_run_stay(tmp_path):
    """Another reserve is not what was counted, and by another key other images would be held out."""
    flags = {"dataset_name": "scans", "key_column": "a", "validation_size": 3, "num_train_images": 1437}
    config, result = plan(**flags, curriculum="none", evaluation_reserve=0.1, output_dir=str(tmp_path), dry_run=True)
    facts = replace(FACTS, held_out=3, ids="column")
    ledger = new_ledger(config.ledger_path, config, facts)
    ledger.reserve(result.rows["dp_sgd"])
    for change in ({"evaluation_reserve": 0.05}, {"key_column": "b"}):
        with pytest.raises(IntegrityError, match="evaluation_reserve|held_out"):
            new_ledger(config.ledger_path, replace(config, **change), facts)


def test_slack_for_restarts_is_counted_before_and_spent_only_when_lost():
    """The noise is that of all steps, the target bounds all of them, and a run that loses none spends less."""
    plain_config, plain = plan(target_epsilon=2.0)
    config, result = plan(target_epsilon=2.0, restart_slack=20)
    dp_sgd, slack = result.rows["dp_sgd"], result.rows["restart_slack"]
    assert (dp_sgd.steps, slack.steps) == (60, 20) and slack == replace(dp_sgd, name="restart_slack", steps=20)
    assert dp_sgd.noise_multiplier > 1.05 * plain.rows["dp_sgd"].noise_multiplier
    assert 1.98 <= result.epsilon <= 2 and independent_epsilon(result.rows, result.sampling.target_delta) <= 2
    assert "restart_slack" not in plain.rows and "restart_slack" in result.table
    queries = {name: row for name, row in result.rows.items() if name not in ("dp_sgd", "restart_slack")}
    ledger = filled(config, queries)
    row = dp_sgd_row(config, result, ledger)
    assert row.noise_multiplier == pytest.approx(dp_sgd.noise_multiplier, rel=2e-4)
    for steps in (30, 20):  # the second twenty are lost
        ledger.executed(ledger.reserve(replace(row, steps=steps)), 30 if steps == 30 else 0)
    assert last_affordable_step(ledger, row, 30, 60) == 60
    ledger.reserve(replace(row, steps=30))
    assert ledger.epsilon() == pytest.approx(result.epsilon, abs=1e-3) and ledger.affordable_steps(row, 5) == 0
    untouched = filled(config, queries)
    untouched.reserve(replace(row, steps=60))
    assert untouched.epsilon() < result.epsilon - 0.05
