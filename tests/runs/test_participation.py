# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--participation exactly`: what the plan says, and runs that are interrupted, resumed, refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import Allocation, LedgerRow
from diffusers_dp.audit.mechanism import Mechanism
from diffusers_dp.audit.turns import turn_checks
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.methods.config import resolve
from diffusers_dp.methods.flag import validate
from diffusers_dp.methods.method_flags import DPDMConfig
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.runs.plan import dp_sgd_row, plan_run
from diffusers_dp.runs.run_ledger import new_ledger
from diffusers_dp.runs.turns import KEY_NAME, chosen_allocation
from diffusers_dp.verify import verify
from support.bands import bands_of
from support.flags import RESUME, SHORT_RUN
from support.runs import interrupted, load, read_ledger, write_images
from support.turns import allocation_of


FACTS = PublicFacts(60_000, (1, 28, 28), ("a", "b"))
FLAGS = {"participation": "exactly", "noise_bands": "8", "max_train_steps": 48, "train_batch_size": 2500}


def plan(**flags):
    config = DPDMConfig(output_dir="none", **{"target_epsilon": 10.0, **FLAGS, **flags})
    validate(config)
    return config, plan_run(config, FACTS)


def test_the_plan_says_turns_and_noise():
    """The batch is rounded so that k is whole: 2 of 6 turns, not 2.0 of 48 steps by chance."""
    config, result = plan(train_batch_size=2600)
    row = result.rows["dp_sgd"]
    assert (row.mechanism, row.sampling_probability, row.bands) == ("allocated_gaussian", 2 / 6, 8)
    assert row.query["normaliser"] == 2500 == result.sampling.expected_batch_size
    assert 9.99 < result.epsilon <= 10
    by_coins = plan(participation="poisson", train_batch_size=2500)[1].rows["dp_sgd"].noise_multiplier
    assert row.noise_multiplier < by_coins
    assert f"noise {row.noise_multiplier / by_coins:.1%} of what --participation poisson needs" in result.table
    assert "each image takes part in exactly 2 of 6 turns of its group, 2,500 images a step" in result.table
    by_bands = result.noise_errors[8] / result.noise_errors[1]
    assert result.noise_against_independent == pytest.approx(by_bands * row.noise_multiplier / by_coins, rel=1e-3)
    assert result.epsilon_against_steps([0, 1, 48], "pld") == [0, result.epsilon, result.epsilon]
    assert result.participation_key.hex() not in repr(result)
    sampling = resolve(config, 60_000)
    assert sampling.turns == (6, 2) and sampling.sample_rate == 2 / 48


def test_it_saves_noise_at_a_small_epsilon_too():
    """The grid of losses is as fine as it has to be there."""
    _, result = plan(target_epsilon=0.2)
    assert result.rows["dp_sgd"].noise_multiplier < result.noise_by_coins and 0.199 < result.epsilon <= 0.2


def test_releases_of_a_data_set_leave_the_verifier_time(tmp_path):
    """Each takes a part of what is left, by a coarser grid."""
    steps = []
    for number in range(4):
        config = DPDMConfig(output_dir="none", target_epsilon=10.0, **{**FLAGS, "train_batch_size": 2500})
        ledger = PrivacyLedger(
            tmp_path / "scans.jsonl", target_epsilon=10.0, target_delta=1e-5, num_images=60_000, dataset_id="scans",
            release_id=str(number),
        )  # fmt: skip
        sampling = replace(resolve(config, 60_000), turns=(36, 9))
        allocation, _, by_coins = chosen_allocation(ledger, sampling, None, "row")
        steps.append(allocation.loss_step)
        ledger.reserve(LedgerRow("dp_sgd", "allocated_gaussian", by_coins, 0.25, 1, allocation.facts))
        ledger.close()
    assert steps == sorted(steps) and steps[-1] > steps[0]


@pytest.mark.slow
def test_sixteen_bands_at_epsilon_10_need_a_tenth_less_noise():
    """The figure of docs/guarantee.md."""
    _, result = plan(noise_bands="16", max_train_steps=560, train_batch_size=536)
    assert result.rows["dp_sgd"].noise_multiplier < 0.9 * result.noise_by_coins


@pytest.mark.parametrize(("flags", "words"), [
    ({"max_train_steps": 50}, "--noise_bands 8 groups: give --max_train_steps 48"),
    ({"noise_bands": "auto"}, "--noise_bands auto exclude each other"),
    ({"restart_slack": 3}, "--restart_slack 3 exclude each other"),
    ({"noise_bands": "1", "truncated_poisson": True}, "--truncated_poisson exclude each other"),
    ({"accountant": "rdp"}, "--accountant rdp exclude each other"),
    ({"noise": "exact"}, "--noise exact exclude each other"),
    ({"target_epsilon": float("inf"), "noise_bands": "1"}, "--target_epsilon inf exclude each other"),
    ({"train_batch_size": 100}, "rounds to none: raise it or --train_batch_size"),
    ({"train_batch_size": None, "sample_rate": "1/10000"}, "rounds to none: raise it or --sample_rate"),
    ({"train_batch_size": 7400}, "6 turns, and a group has 6"),
    ({"noise_bands": "1", "max_train_steps": 1900, "train_batch_size": 20_000}, "too long to count"),
    ({"noise_bands": "1", "max_train_steps": 3000, "train_batch_size": 20}, "give at most 2000"),
])  # fmt: skip
def test_what_cannot_be_is_refused(flags, words):
    with pytest.raises(UsageError) as refusal:
        plan(**flags)
    assert words in str(refusal.value)


def test_dp_sgd_goes_on_with_its_turns():
    config, result = plan()
    ledger = new_ledger(None, config, FACTS)
    row = dp_sgd_row(config, result, ledger)
    ledger.take_step(row, reserve_steps=2)
    assert dp_sgd_row(*plan(), ledger) == row, "by its key, whatever the new plan drew"
    with pytest.raises(UsageError, match="--participation poisson is not what this run began with: resume with exa"):
        dp_sgd_row(*plan(participation="poisson"), ledger)
    with pytest.raises(IntegrityError, match="began with 2 of 6 turns for each unit, and now it is 1 of 6"):
        dp_sgd_row(*plan(train_batch_size=1250), ledger)


@pytest.mark.parametrize("bands", [None, bands_of(4)])
def test_the_pre_flight_tries_turns(bands, monkeypatch):
    mechanism = Mechanism(
        0.05, 2.0, 1.0, 4.0, 1, False, 1e-5, bands=bands, allocation=allocation_of(35, 5, key=bytes(32))
    )  # fmt: skip
    assert all(check.passed for check in turn_checks(mechanism))
    honest = SensitiveImages._units_of_turn

    def once_more(self, allocation, bands, position):
        units = honest(self, allocation, bands, position)
        return honest(self, allocation, bands, 0) if position == 0 or not len(units) else units.new_tensor(
            sorted({*units.tolist(), int(units[0]) if position % 2 else 0})
        )  # fmt: skip

    monkeypatch.setattr(SensitiveImages, "_units_of_turn", once_more)
    failed = [check.name for check in turn_checks(mechanism) if not check.passed]
    assert "turns: records that took part in another number" in failed


# Runs.


@pytest.fixture
def flags(tmp_path):
    more = "--participation exactly --noise_bands 4 --train_batch_size 2 --max_train_steps 12 --checkpointing_steps 2"
    more += " --restart_slack 0 --accountant pld"
    return [*SHORT_RUN, *more.split(), *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]


@pytest.fixture
def steps(monkeypatch):
    """Position of each step, and who took part in it, as the door took them."""
    taken, honest = [], SensitiveImages._units_of_turn

    def noted(self, allocation, bands, position):
        units = honest(self, allocation, bands, position)
        taken.append((position, frozenset(units.tolist())))
        return units

    monkeypatch.setattr(SensitiveImages, "_units_of_turn", noted)
    return taken


def test_an_interrupted_run_goes_on_with_its_turns(flags, tmp_path, monkeypatch, steps):
    """A crash in the sixth step loses two for good: the run ends after 10, and nobody took part more than once."""
    script = load("dpdm", monkeypatch)
    interrupted(script, monkeypatch, flags, 6)
    key = (tmp_path / "run" / "private" / KEY_NAME).read_bytes()
    before = steps.copy()
    steps.clear()
    script.main([*flags, *RESUME])
    assert [position for position, _ in before] == [0, 1, 2, 3, 4, 5]
    assert [position for position, _ in steps] == [6, 7, 8, 9, 10, 11], "behind all that was reserved"
    counts = np.bincount([unit for _, units in (*before, *steps) for unit in units], minlength=30)
    assert set(counts) == {1}
    assert (tmp_path / "run" / "private" / KEY_NAME).read_bytes() == key
    _, rows = read_ledger(tmp_path / "run")
    assert [row["first_step"] for row in rows] == [0, 2, 4, 6, 8, 10]
    assert Allocation.of(rows[0]["query"]).participations == 1
    release = tmp_path / "run" / "release"
    assert verify(release)[1] == []
    text = (release / "privacy_receipt.json").read_text()
    assert json.loads(key)["key"] not in text and KEY_NAME not in {path.name for path in release.iterdir()}
    steps.clear()
    script.main([*flags, *RESUME])
    assert steps == [], "all turns are over"


@pytest.mark.parametrize("damage", ["gone", "another", "damaged"])
def test_without_its_key_a_run_is_not_resumed(flags, tmp_path, monkeypatch, damage, steps):
    """Other turns for the steps that are left would let an image take part more often than is paid for."""
    script = load("dpdm", monkeypatch)
    interrupted(script, monkeypatch, flags, 4)
    path = tmp_path / "run" / "private" / KEY_NAME
    content, ledger = path.read_bytes(), (tmp_path / "run" / "private" / "ledger.jsonl").read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(json.dumps({"key": "00" * 32}) if damage == "another" else "{")
    steps.clear()
    with pytest.raises(IntegrityError, match=f"{KEY_NAME} is missing, damaged or of another run"):
        script.main([*flags, *RESUME])
    assert steps == [] and (tmp_path / "run" / "private" / "ledger.jsonl").read_bytes() == ledger
    path.write_bytes(content)
    script.main([*flags, *RESUME])
    assert verify(tmp_path / "run" / "release")[1] == []


def test_two_runs_have_two_keys(flags, tmp_path, monkeypatch):
    """By one key, their turns would tell of each other."""
    script = load("dpdm", monkeypatch)
    keys = []
    for name in ("one", "two"):
        interrupted(script, monkeypatch, [*flags, "--output_dir", str(tmp_path / name)], 1)
        keys.append((tmp_path / name / "private" / KEY_NAME).read_text())
    assert keys[0] != keys[1]
