# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that was killed in a query finishes what it begins, at the noise of its first start, or begins nothing."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import BudgetExceeded, IntegrityError, UsageError
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.models.denoiser import EDMDenoiser
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.runs import diffusion_run, warm_up
from diffusers_dp.runs.folder import RunIdentity, read_identity, save_identity
from diffusers_dp.runs.noise import kept_row, noise_of
from diffusers_dp.runs.plan import plan_run
from diffusers_dp.runs.rest_of_plan import refuse_what_cannot_be_finished
from diffusers_dp.runs.run_ledger import new_ledger
from diffusers_dp.verify import verify
from support import forked
from support.few import few
from support.flags import NUM_IMAGES, RESUME, SHORT_FETA_PRO, SHORT_RUN
from support.killed import FAILS, MOMENTS
from support.places import ROOT, TESTS
from support.runs import load, read_ledger, write_images, write_public


FACTS = PublicFacts(1437, (1, 8, 8), ("a", "b"))
OF_FETA = "--resolution 8 --num_channels 1 --accountant rdp --target_epsilon 2 --max_train_steps 60".split()
MOMENT_FLAGS = (
    "--class_names left,empty,right --resolution 8 --num_channels 1 --skip_preflight --accountant rdp "
    f"--num_train_images {NUM_IMAGES} --target_epsilon 10 --images_per_class 4"
).split()


def begun(folder, *flags):
    """Configuration, plan, and the ledger of a run that has asked nothing yet."""
    config = load_config([*OF_FETA, *flags, "--output_dir", str(folder)])
    plan = plan_run(config, FACTS)
    (folder / "private" / "answers").mkdir(parents=True, exist_ok=True)
    save_identity(folder / "private", RunIdentity(asked=False, noise=noise_of(plan.rows, plan.queries, plan.exact)))
    identity = read_identity(folder / "private", None, config.ledger_path)
    return config, plan, new_ledger(config.ledger_path, config, FACTS, identity)


def check(plan, ledger, folder, step=None, most=60):
    refuse_what_cannot_be_finished(plan, ledger, folder / "private", step=step, max_train_steps=most)


def answered(folder, name):
    (folder / "private" / "answers" / name).mkdir()


def test_the_rest_is_priced_before_the_next_query(tmp_path):
    _, plan, ledger = begun(tmp_path)
    first, second = (query.name for query in plan.queries)
    check(plan, ledger, tmp_path)
    ledger.reserve(plan.rows[first])
    before = ledger.path.read_bytes()
    with pytest.raises(
        BudgetExceeded, match=rf"{first}, {second}, 60 of dp_sgd\) would .* target 2 .* answer of"
    ) as no:
        check(plan, ledger, tmp_path)
    assert no.value.exit_code == 3 and ledger.path.read_bytes() == before
    steps = int(str(no.value).partition("--max_train_steps ")[2].partition(",")[0])
    check(plan, ledger, tmp_path, most=steps)  # the remedy is one
    with pytest.raises(BudgetExceeded):
        check(plan, ledger, tmp_path, most=steps + 1)
    answered(tmp_path, first)
    check(plan, ledger, tmp_path)


def test_dp_sgd_alone_may_end_early_and_not_before_its_first_step(tmp_path):
    _, plan, ledger = begun(tmp_path)
    for query in plan.queries:
        ledger.reserve(plan.rows[query.name])
        answered(tmp_path, query.name)
    ledger.take_step(plan.step, reserve_steps=59)
    check(plan, ledger, tmp_path)
    ledger.take_step(plan.step, reserve_steps=1)
    ledger.executed(ledger.reserve(LedgerRow("rest", sampled(1.0, 60.0))), 1)
    with pytest.raises(BudgetExceeded, match="No step of DP-SGD is left"):
        check(plan, ledger, tmp_path)
    check(plan, ledger, tmp_path, step=30)


def test_a_lost_evaluation_is_not_asked_again_and_stops_no_release(tmp_path):
    """The model is finished: it is released without charged numbers."""
    _, plan, ledger = begun(tmp_path, "--evaluation_reserve", "0.2")
    for query in plan.queries:
        ledger.reserve(plan.rows[query.name])
        answered(tmp_path, query.name)
    ledger.reserve(replace(plan.step, steps=60))
    check(plan, ledger, tmp_path, step=60)
    ledger.reserve(plan.rows["evaluation_reserve"])
    check(plan, ledger, tmp_path, step=60)
    check(plan, ledger, tmp_path, step=30)


@pytest.mark.parametrize("noise", ["float", "exact"])
def test_no_noise_is_chosen_again(tmp_path, noise):
    """Also where more is spent than was planned, and for what was not asked yet."""
    _, plan, ledger = begun(tmp_path, "--noise", noise)
    ledger.reserve(plan.rows[plan.queries[0].name])
    again_flags = [*OF_FETA, "--noise", noise, "--output_dir", str(tmp_path), *RESUME]
    resumed = load_config([*again_flags, "--restart_slack", "30"])
    again = plan_run(resumed, FACTS)
    assert {name: row.noise_multiplier for name, row in again.rows.items() if name in plan.rows} == {
        name: row.noise_multiplier for name, row in plan.rows.items()
    }
    for flags, words in (
        ("--noise_multiplier central_images=9", "has flag 9, and this run began with None"),
        ("--budget central_images=0.2", "has budget share 0.2"),
        ("--num_central_images 3", "has repeats 3"),
    ):
        with pytest.raises(UsageError, match=words):
            plan_run(load_config([*again_flags, *flags.split()]), FACTS)
    with pytest.raises(IntegrityError, match="began with sampling probability"):
        plan_run(load_config([*again_flags, "--train_batch_size", "50"]), FACTS)


def test_a_query_that_is_new_is_refused():
    known, new = MeanImages(image_shape=(1, 8, 8), noise_multiplier=5.0), MeanImages(image_shape=(1, 8, 8))
    kept = noise_of({known.name: LedgerRow(known.name, sampled(1.0, 5.0))}, [known], exact=False)
    assert kept_row(json.loads(json.dumps(kept)), known, {}).noise_multiplier == 5.0
    for wrong, error in (
        ({}, UsageError),
        ({known.name: {**kept[known.name], "noise_multiplier": "5"}}, IntegrityError),
    ):
        with pytest.raises(error, match=known.name):
            kept_row(wrong, known, {})
    with pytest.raises(UsageError):
        kept_row(kept, new, {})


def kill_and_resume(folder, method, flags, moment, query, count=1, rank=0):
    """The rows after the kill and after the resumed run, and its exit code."""
    run, script = folder / "run", ROOT / METHODS[method].script
    flags = [*flags, *write_images(folder / "images"), "--output_dir", str(run)]
    forked.run(TESTS / "support" / "killed.py", moment, query, rank, script, *flags, folder=folder, count=count)
    path = run / "private" / "ledger.jsonl"
    before = read_ledger(run)[1] if path.exists() else []
    done = forked.run(script, *flags, *RESUME, folder=folder, count=count)
    header, after = read_ledger(run)
    charged = [row["stage"] for row in before].count(query)
    assert charged == (0 if moment in ("pass", "sum") else 1)
    if done.returncode == 0:
        receipt, problems = verify(run / "release")
        assert problems == [] and len(receipt["events"]) == len(after)
        assert receipt["claimed_epsilon"]["rdp"]["epsilon"] <= header["target_epsilon"] + 1e-9
        noise = {(row["stage"], row["noise_multiplier"]) for row in after}
        assert len(noise) == len({row["stage"] for row in after})
    return before, after, done


@pytest.mark.parametrize(("moment", "code"), [("pass", 0), ("row", 3)])
def test_a_kill_within_a_query(tmp_path, moment, code):
    before, after, done = kill_and_resume(tmp_path, "moments", MOMENT_FLAGS, moment, "class_moments")
    assert done.returncode == code, done.stderr[-3000:]
    if code:
        assert before == after and "error: What is left of the plan (class_moments, covariances)" in done.stderr


@pytest.mark.parametrize("moment", few([FAILS, "pass"]))
def test_a_kill_of_one_of_two_processes(tmp_path, moment):
    _, _, done = kill_and_resume(tmp_path, "moments", MOMENT_FLAGS, moment, "class_moments", count=2, rank=1)
    assert done.returncode == (3 if moment == FAILS else 0), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("method", "flags", "query"),
    [
        ("moments", MOMENT_FLAGS, "grey_levels"),
        ("moments", MOMENT_FLAGS, "covariances"),
        ("feta_pro", SHORT_FETA_PRO, "frequency_features"),
    ],
)
def test_kills_at_every_moment(tmp_path, method, flags, query, count):
    for moment, folder in zip((*MOMENTS, FAILS), map(tmp_path.joinpath, "abcdef"), strict=True):
        folder.mkdir()
        before, after, done = kill_and_resume(folder, method, flags, moment, query, count)
        refused = moment in ("row", "noise", FAILS) and method == "moments"
        assert done.returncode == (3 if refused else 0), (moment, done.stderr[-3000:])
        assert not refused or before == after


class Stopped(BaseException):
    pass


def test_a_resumed_run_repeats_no_finished_stage_of_its_warm_up(tmp_path, monkeypatch):
    """And nothing that its flags say now changes what the stage followed from. Warm-ups, also
    repeated ones, are in bf16 where the CPU has it; DP-SGD is not."""
    script, taught, types = load("feta_pro", monkeypatch), [], []
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    forward = EDMDenoiser.forward

    def watched(self, *inputs):
        types.append(self.autocast_dtype)
        return forward(self, *inputs)

    monkeypatch.setattr(EDMDenoiser, "forward", watched)
    flags = [*SHORT_FETA_PRO, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    for module, name in ((diffusion_run, "warm_up"), (warm_up, "fit_generator")):

        def noted(*arguments, original=getattr(module, name), **settings):
            taught.append(settings.get("title", "Auxiliary generator"))
            return original(*arguments, **settings)

        monkeypatch.setattr(module, name, noted)

    def stopped(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(diffusion_run.DiffusionRun, "dp_sgd", stopped)
        with pytest.raises(Stopped):
            script.main(flags)
    stages = ["Warm-up (spatial)", "Auxiliary generator", "Warm-up (frequency)"]
    assert taught == stages and types == [torch.bfloat16] * 2
    learned = tmp_path / "run" / "private" / "learned"
    assert {each.name for each in learned.iterdir()} == {"spatial", "auxiliary_generator", "frequency"}
    with pytest.raises(UsageError, match="spatial was made with other flags"):
        script.main([*flags, *RESUME, "--ema_decay", "0.5"])
    shutil.rmtree(learned / "frequency")  # as if it had been stopped in that stage
    wanted = open_sealed(learned / "spatial")[1]["module"]
    taught.clear()
    script.main([*flags, *RESUME])
    assert taught == ["Warm-up (frequency)"] and types[2] == torch.bfloat16 and set(types[3:]) == {None}
    found = open_sealed(learned / "spatial")[1]["module"]
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_other_public_inputs_do_not_follow_a_finished_stage(tmp_path, monkeypatch):
    """The receipt names what the kept weights began with."""
    script = load("dp_feta", monkeypatch)
    flags = [*SHORT_RUN, *"--spatial_steps 1 --num_central_images 2 --expert spatial_batch_size=6".split()]
    flags += [*write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run"), "--mix_public_images"]

    def stopped(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(diffusion_run.DiffusionRun, "dp_sgd", stopped)
        with pytest.raises(Stopped):
            script.main([*flags, *write_public(tmp_path / "public")])
    with pytest.raises(UsageError, match="This run began with another"):
        script.main([*flags, *RESUME, *write_public(tmp_path / "others", seed=2)])
