# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A plan with two trainings by DP-SGD: each has its row, noise, samples, steps and checkpoints, in one ledger."""

from collections import Counter

import pytest
from diffusers.training_utils import EMAModel

from diffusers_dp.accounting.ledger_row import DP_SGD
from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.private_training import PrivateTraining
from diffusers_dp.privacy import sensitive
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.runs.plan import plan_run
from diffusers_dp.verify import verify
from support import two_trainings
from support.flags import NUM_IMAGES, RESUME
from support.patients import unit_flags, write_dataset
from support.places import TESTS
from support.power_cut import Disk, watch, write_state
from support.processes import launch
from support.runs import PowerCut, ledger_of, read_ledger, receipt_of, status, write_images
from support.two_trainings import FIRST, METHOD, STEPS, Config, start


FLAGS = ["--class_names", "left,empty,right", "--resolution", "8", "--num_channels", "1", "--accountant", "rdp"]
FLAGS += ["--num_train_images", str(NUM_IMAGES), "--target_epsilon", "1", *STEPS.split(), "--skip_preflight"]
PLANNED = {FIRST: 6, DP_SGD: 4}


@pytest.fixture
def drawn(monkeypatch):
    """Row and standard deviation of each step's noise, as they are at the door."""
    found, names, normal = [], [], PrivateGenerator.normal
    ask = sensitive.SensitiveImages.noisy_gradient

    def asked(door, *arguments, **options):
        names.append(options["name"])
        try:
            return ask(door, *arguments, **options)
        finally:
            names.pop()

    def noise(generator, shape, std, device="cpu"):
        if names and len(shape) == 2:  # of a weight
            found.append((names[-1], std))
        return normal(generator, shape, std, device)

    monkeypatch.setattr(sensitive.SensitiveImages, "noisy_gradient", asked)
    monkeypatch.setattr(PrivateGenerator, "normal", noise)
    return found


def check(run, planned=PLANNED):
    """The release is whole, each training has its own steps, and a stranger finds the same epsilon."""
    assert status(run) == {"exit_code": 0, "message": "done"} and verify(run / "release")[1] == []
    _, rows = read_ledger(run)
    reserved = Counter()
    for row in rows:
        reserved[row["stage"]] += row["steps_reserved"]
    assert reserved == planned
    assert receipt_of(run)["claimed_epsilon"]["rdp"]["epsilon"] <= 1 + 1e-9
    return rows


def test_each_training_has_its_row_its_noise_and_its_samples(flags, tmp_path, drawn):
    config = load_config(flags, METHOD)
    plan = plan_run(config, public_facts(config.data))
    assert list(plan.rows) == [FIRST, DP_SGD] and plan.ledger.budget_shares()[FIRST] == pytest.approx(0.3, abs=0.02)
    start(flags)
    for row in check(tmp_path / "run"):
        planned = plan.rows[row["stage"]]
        assert row["noise_multiplier"] == planned.noise_multiplier and row["query"] == planned.query
    first, second = plan.rows[FIRST], plan.rows[DP_SGD]
    assert (first.sampling_probability, second.sampling_probability) == (5 / NUM_IMAGES, 8 / NUM_IMAGES)
    assert first.noise_multiplier != second.noise_multiplier
    assert drawn == [(FIRST, first.noise_multiplier * 0.5)] * 6 + [(DP_SGD, second.noise_multiplier)] * 4


@pytest.mark.parametrize("last, left", [(3, {FIRST: 2, DP_SGD: 4}), (6, {FIRST: 0, DP_SGD: 4}), (9, {DP_SGD: 0})])
def test_a_kill_in_either_and_between(last, left, flags, tmp_path, monkeypatch, drawn):
    """Two steps are reserved together. Those that are lost stay spent, and nobody else pays for them; those that a
    checkpoint holds are not taken again."""

    def dies(average, parameters, step=EMAModel.step):
        step(average, parameters)
        if len(drawn) == last:
            raise PowerCut

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(EMAModel, "step", dies)
        start(flags)
    before = len(drawn)
    start([*flags, *RESUME])
    check(tmp_path / "run")
    assert before == last and Counter(name for name, _ in drawn[before:]) == Counter(left)


@pytest.mark.slow
def test_a_power_cut_before_every_sync(flags, tmp_path, monkeypatch):
    """The run goes on to its end, no noise is used twice, and no training takes the budget of the other."""
    noted, cuts = [], {}
    watch(lambda line: noted.append(line), monkeypatch.setattr)
    (tmp_path / "run").mkdir()
    disk = Disk(tmp_path / "run", lambda: cuts.update({disk.state(): list(noted)}))
    with disk.watched():
        start(flags)
    assert len(cuts) > 15
    for number, (state, before) in enumerate(cuts.items()):
        run = tmp_path / f"run_{number}"
        write_state(state, run)
        noted.clear()
        start([*flags, "--output_dir", str(run), *RESUME])
        rows = check(run)
        assert sum(row["steps_reserved"] for row in rows) >= [*before, *noted].count("step") >= 6
        times = Counter(line for line in (*before, *noted) if line != "step")
        assert set(times.values()) == {1}, "noise was used twice"


def test_a_training_that_loses_all_its_steps_is_refused(flags, tmp_path, monkeypatch):
    """It would need those of the other."""
    monkeypatch.setattr(PrivateTraining, "at", lambda self, number, at=PrivateTraining.at: at(longer(self), number))

    def longer(training):
        training.settings.checkpointing_steps = 6
        return training

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(EMAModel, "step", lambda *_: (_ for _ in ()).throw(PowerCut()))
        start(flags)
    before = read_ledger(tmp_path / "run")
    with pytest.raises(BudgetExceeded, match=f"{FIRST}, 4 of dp_sgd"):
        start([*flags, *RESUME])
    assert read_ledger(tmp_path / "run") == before


def test_the_pre_flight_tries_both(flags, tmp_path, monkeypatch):
    flags = [flag for flag in flags if flag != "--skip_preflight"]
    start(flags)
    check(tmp_path / "run")

    def mixed(run):
        from support.two_trainings import build_small, squared

        other = build_small(run.plan.queries[0], run.facts, "cpu")
        object.__setattr__(other, "loss", squared)
        run.train(run.plan.queries[0], lambda: other)

    monkeypatch.setattr(two_trainings, "preflight", lambda *_, **__: None)  # what was tried is noted all the same
    with pytest.raises(UsageError, match="pre-flight tried.* `run.train` gets"):
        start([*flags, "--output_dir", str(tmp_path / "other")], train=mixed)


def test_a_training_that_was_planned_is_taken_and_once(flags, tmp_path):
    from support.two_trainings import Index, build_small

    def none(run):
        run.release(Index())

    def twice(run):
        for _ in range(2):
            run.train(run.plan.queries[0], lambda: build_small(None, run.facts, "cpu"))

    with pytest.raises(UsageError, match=f"never asked what it planned: {FIRST}"):
        start(flags, train=none)
    with pytest.raises(UsageError, match="trained already"):
        start([*flags, "--output_dir", str(tmp_path / "twice")], train=twice)


@pytest.mark.parametrize("last", ["broken", pytest.param("absent", marks=pytest.mark.slow)])
def test_a_record_less_shows_nowhere(last, tmp_path, monkeypatch):
    """Nor does a class without images, and a batch may be of one image or none."""
    receipts = []
    monkeypatch.setattr(Config, "small_batch_size", 1)
    for name, kind in (("whole", "good"), ("less", last)):
        images = write_images(tmp_path / f"images_{name}", kind)
        start([*FLAGS, *images, "--output_dir", str(tmp_path / name)])
        rows = check(tmp_path / name)
        assert rows[0]["query"]["normaliser"] == 1
        receipts.append(receipt_of(tmp_path / name))
    assert receipts[0] == receipts[1]


def test_units_of_several_images_and_records_without_a_label(tmp_path):
    folder, run = tmp_path / "data", tmp_path / "run"
    write_dataset(folder)
    table = folder / "metadata.csv"
    lines = table.read_text().splitlines()
    lines[3] = lines[3].replace("healthy", "").replace("ill", "")
    table.write_text("\n".join(lines) + "\n")
    given = unit_flags(folder, run)
    given = given[given.index("--dataset_name") :]
    start([*given, *STEPS.replace("size 8", "size 3").split(), "--skip_preflight", "--target_epsilon", "1"])
    for row in check(run):
        assert row["query"]["max_images_per_unit"] == receipt_of(run)["public_facts"]["max_images_per_unit"]


@pytest.mark.slow
def test_two_processes_train_both(tmp_path):
    images = write_images(tmp_path / "images")
    done = launch(2, TESTS / "support" / "two_trainings.py", *FLAGS, *images, "--output_dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path / "run")
    assert receipt_of(tmp_path / "run")["processes"] == [2]


def test_a_checkpoint_that_is_damaged_ends_the_run(flags, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(EMAModel, "step", dies_at(3))
        start(flags)
    (tmp_path / "run" / "private" / "trained" / FIRST / "checkpoint-2" / "ema.safetensors").write_bytes(b"")
    before = read_ledger(tmp_path / "run")
    with pytest.raises(IntegrityError, match="checkpoint-2"):
        start([*flags, *RESUME])
    assert read_ledger(tmp_path / "run") == before


def test_a_finished_training_is_not_taken_where_the_ledger_lost_its_steps(flags, tmp_path, monkeypatch):
    """As where an older copy of it was put back: the receipt would say less than was spent."""
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(EMAModel, "step", dies_at(7))
        start(flags)
    path = ledger_of(tmp_path / "run")
    header, row, *lost = path.read_text().splitlines(keepends=True)
    assert len(lost) == 3 and FIRST in lost[1] and (tmp_path / "run" / "private" / "learned" / FIRST).exists()
    path.write_text(header + row)
    with pytest.raises(IntegrityError, match=f"The ledger is shorter than .*learned/{FIRST} says"):
        start([*flags, *RESUME])
    assert path.read_text() == header + row


def dies_at(number, step=EMAModel.step):
    calls = []

    def dies(average, parameters):
        calls.append(1)
        if len(calls) == number:
            raise PowerCut
        step(average, parameters)

    return dies
