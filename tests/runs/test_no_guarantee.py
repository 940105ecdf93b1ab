# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--target_epsilon inf`: nothing gets noise, no release comes of it, and no run with a guarantee ever gets there."""

import json
import math
import os
import shutil

import numpy as np
import pytest
import torch
from diffusers import EDMDPMSolverMultistepScheduler
from torch import nn

from diffusers_dp import SensitiveImages, cli, load_verified
from diffusers_dp.accounting import epsilon as accounting
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import DiffusersDPError, IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.marked import FOLDER, save_without_guarantee
from diffusers_dp.release.push import files_to_push
from diffusers_dp.release.receipt import RunRecord, build_receipt
from diffusers_dp.runs.folder import RunFolder
from diffusers_dp.runs.run_ledger import new_ledger
from support import public_models
from support.doors import put
from support.flags import TINY_RUN
from support.ledgers import protected, unprotected
from support.power_cut import Disk, write_state
from support.public_models import make_unet
from support.runs import files, interrupted, load, read_ledger, status, write_images


N, SHAPE = 6, (1, 2, 2)
INF = ["--target_epsilon", "inf"]
QUICK = "--curriculum none --train_batch_size 64".split()
WORDS = "trained WITHOUT any privacy guarantee"
#: Further flags, what is asked before DP-SGD, and what noisy answers taught, here without noise.
CASES = {
    "feta_pro": (
        "--spatial_steps 2 --num_central_images 3 --frequency_steps 2 --generator_steps 2 --num_frequency_features 50 "
        "--expert num_auxiliary_images=20,generator_channels=4 --noise_multiplier central_images=5",
        ["central_images", "frequency_features"],
        ["auxiliary_generator/config"],
    ),
    "dpdm": ("", [], []),
}  # fmt: skip


def query(sigma=0.0, rate=0.5, steps=3):
    return LedgerRow("x", sampled(rate, sigma), steps)


def door():
    pixels = np.random.default_rng(0).integers(0, 256, (N, *SHAPE), dtype=np.uint8)
    labels = np.arange(N) % 2
    names, ledger = ("a", "b"), unprotected()
    door = SensitiveImages(pixels, labels, None, num_images=N, image_shape=SHAPE, ledger=ledger, class_names=names)
    return door, pixels


def ask_sum(images, ledger, sigma=0.0):
    return put(
        images, "noisy_sum", lambda x, _: x.flatten(1), sampled(1.0, sigma, by_label=True), clip_norm=1.0, name="x",
        ledger=ledger,
    )  # fmt: skip


def ask_gradient(images, ledger, sigma=0.0, rate=1.0, model=None):
    return put(
        images, "noisy_gradient", nn.Linear(4, 1, bias=False) if model is None else model, row_loss,
        sampled(rate, sigma), max_grad_norm=0.5, normaliser=3, noise_multiplicity=1,
        max_physical_batch_size=4, ledger=ledger,
    )  # fmt: skip


def row_loss(model, rows, labels, generator):
    return model(rows.flatten(1)).squeeze(1)


class TestDoor:
    def test_sums_and_gradients_without_guarantee_are_exact_and_clipped(self):
        images, pixels = door()
        values = torch.from_numpy(pixels).flatten(1).float()
        clipped = values / 255 / (values / 255).norm(dim=1, keepdim=True).clamp_min(1)
        expected = torch.stack([clipped[0::2].sum(0), clipped[1::2].sum(0)])
        torch.testing.assert_close(ask_sum(images, unprotected())[0], expected)
        gradients = values / 127.5 - 1
        gradients = gradients * (0.5 / gradients.norm(dim=1, keepdim=True)).clamp_max(1)
        found = ask_gradient(images, unprotected())["weight"]
        torch.testing.assert_close(found[0], gradients.sum(0) / 3)

    @pytest.mark.parametrize("ask", [ask_sum, ask_gradient])
    def test_no_finite_target_is_high_enough_for_an_answer_without_noise(self, ask, tmp_path):
        images, _ = door()
        for ledger in (protected(), protected(tmp_path / "ledger.jsonl", 1.0)):
            with pytest.raises(UsageError, match="without noise"):
                ask(images, ledger)
            assert ledger.rows == [] and ledger.epsilon() == 0
        assert not (tmp_path / "ledger.jsonl").exists()


class TestLedger:
    def test_every_number_is_infinite_or_zero_and_no_accountant_sees_a_row(self, monkeypatch, tmp_path):
        for name in ("epsilon", "cost", "rdp", "calibrate", "noise_for_share"):
            monkeypatch.setattr(accounting, name, lambda *_, **__: pytest.fail("accounted"))
        ledger = unprotected(tmp_path / "ledger.jsonl")
        assert ledger.calibrate(sampled(0.5), 10) == ledger.calibrate_gaussian(0.1) == 0
        assert ledger.affordable_steps(query(steps=1), 10**6) == 10**6
        assert ledger.epsilon() == ledger.epsilon("pld", extra=[query()]) == math.inf
        ledger.reserve(query())
        ledger.take_step(query(steps=1), reserve_steps=2)
        ledger.flush_executed()
        assert ledger.epsilon() == ledger.epsilon_of_all_releases() == math.inf
        assert ledger.epsilon_by_stage() == [("x", math.inf)] and ledger.budget_shares() == {}
        header, *rows = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
        assert header["target_epsilon"] == "inf"
        found = [(row["mechanism"], row["noise_multiplier"], row["steps_executed"]) for row in rows]
        assert found == [("non_private", 0, 1)]
        assert unprotected(tmp_path / "ledger.jsonl").rows == ledger.rows

    def test_an_infinite_target_alone_is_no_ledger_without_guarantee(self):
        """A target that an evaluation worked out, or that overflowed, takes no noise away."""
        for target in (math.inf, -math.inf, math.nan):
            with pytest.raises(UsageError, match="--target_epsilon"):
                protected(target=target)

    def test_a_row_without_noise_says_so(self):
        for rate in (1.0, 0.5):
            entry = {**LedgerRow("x", sampled(rate, 0.0)).entry, "steps_reserved": 1}
            assert entry["mechanism"] == "non_private" and LedgerRow.read(entry).mechanism == sampled(rate, 0.0)
            for wrong in ({"mechanism": sampled(rate).kind}, {"noise_multiplier": 1.0}, {"noise_multiplier": -1.0}):
                with pytest.raises(UsageError):
                    LedgerRow.read({**entry, **wrong})

    @pytest.mark.parametrize("first", [protected, unprotected])
    def test_a_ledger_keeps_its_kind(self, first, tmp_path):
        path = tmp_path / "ledger.jsonl"
        second, sigma = (unprotected, 9.0) if first is protected else (protected, 0.0)
        ledger = first(path)
        ledger.reserve(query(sigma))
        before = path.read_bytes()
        with pytest.raises(IntegrityError, match="target_epsilon = .*another --output_dir"):
            second(path)
        assert path.read_bytes() == before

    def test_a_row_without_noise_cannot_be_written_under_a_finite_target(self, tmp_path):
        """Not even by a hand that computes the chain of hashes anew."""
        from diffusers_dp.accounting.ledger_file import _link

        path = tmp_path / "ledger.jsonl"
        protected(path).reserve(query(9.0))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[1].update(mechanism="non_private", noise_multiplier=0.0)
        lines[1]["chain"] = _link(lines[0]["chain"], lines[1])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(IntegrityError, match="contradicts"):
            protected(path)

    def test_no_receipt(self):
        ledger = unprotected()
        ledger.reserve(query())
        with pytest.raises(UsageError, match="no receipt"):
            build_receipt(RunRecord(ledger=ledger, method=METHODS["dpdm"]), files=[], rng={})


class TestFlags:
    @pytest.mark.parametrize("text", ["1", "1000", "0.001"])
    def test_a_finite_target_is_a_ledger_with_guarantee(self, text):
        config = load_config(["--target_epsilon", text, *QUICK])
        ledger = new_ledger(None, config, public_facts(config.data))
        assert config.has_guarantee and ledger.has_guarantee

    @pytest.mark.parametrize(
        "flags",
        [
            "--push_to_hub",
            "--push_to_hub --hub_model_id me/model --dry_run",
            "--evaluation_reserve 0.1",
            "--dataset_id scans --ledger_dir {tmp}/ledgers",
            "--dataset_id scans --ledger_dir {tmp}/ledgers --dataset_epsilon 10",
        ],
    )
    def test_what_makes_no_sense_is_refused_before_anything_is_read(self, flags, tmp_path, monkeypatch):
        script = load("dpdm", monkeypatch)
        monkeypatch.setattr("diffusers_dp.runs.launch.public_facts", lambda *_: pytest.fail("read"))
        flags = flags.format(tmp=tmp_path).split()
        with pytest.raises(UsageError) as refusal:
            script.main([*INF, "--output_dir", str(tmp_path / "run"), *flags])
        assert flags[0] in str(refusal.value) and "--target_epsilon inf" in str(refusal.value)
        assert "\n" not in str(refusal.value) and not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a run without guarantee."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        load("dpdm", patch).main(
            [*TINY_RUN, *INF, *write_images(folder / "images"), "--output_dir", str(folder / "run")]
        )
    return folder / "run"


class TestRuns:
    @pytest.mark.parametrize("method", CASES)
    def test_from_images_to_a_marked_pipeline(self, method, tmp_path, monkeypatch, capsys):
        """Whatever noise other flags name; the pre-flight, which audits noise, is not for such a run."""
        script = load(method, monkeypatch)
        flags = [flag for flag in TINY_RUN if flag != "--skip_preflight"]
        data = write_images(tmp_path / "images")
        more, asked, taught = CASES[method]
        script.main([*flags, *more.split(), *data, *INF, "--output_dir", str(tmp_path / "run")])
        run, out = tmp_path / "run", capsys.readouterr().out
        header, rows = read_ledger(run)
        assert header["target_epsilon"] == "inf"
        assert [row["stage"] for row in rows] == [*asked, "dp_sgd", "dp_sgd"]
        found = {(row["mechanism"], row["noise_multiplier"], row["state"]) for row in rows}
        assert found == {("non_private", 0, "executed")}
        assert {path.name for path in run.iterdir()} == {"private", FOLDER}
        assert (run / FOLDER).stat().st_mode & 0o777 == 0o700
        assert not any("receipt" in name or name == "samples.png" for name in files(run / FOLDER))
        kept = {name: run / "private" / f"{name}.json" for name in taught}
        assert all(WORDS in path.read_text() for path in kept.values())
        assert not list(run.glob("private/*/model_index.json"))
        assert WORDS in (run / FOLDER / "README.md").read_text() and WORDS in out.splitlines()[-2]
        assert "NO GUARANTEE: epsilon is infinite" in out and "Released" not in out
        index = json.loads((run / FOLDER / "model_index.json").read_text())
        assert index["privacy"]["status"] == "no_guarantee" and WORDS in index["privacy"]["statement"]
        assert status(run)["exit_code"] == 0
        pipeline = DPImagePipeline.from_pretrained(run / FOLDER)
        pipeline.save_pretrained(tmp_path / "copy")
        assert WORDS in (tmp_path / "copy" / "model_index.json").read_text()
        assert np.isfinite(pipeline(class_labels=[0], num_inference_steps=2, output_type="np").images).all()

    @pytest.mark.parametrize(("first", "second"), [("1", "inf"), ("inf", "1")])
    def test_a_run_is_not_resumed_as_one_of_the_other_kind(self, first, second, tmp_path, monkeypatch):
        script = load("dpdm", monkeypatch)
        flags = [*TINY_RUN, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
        flags += ["--checkpointing_steps", "1"]
        interrupted(script, monkeypatch, [*flags, "--target_epsilon", first], 2)
        before = (tmp_path / "run" / "private" / "ledger.jsonl").read_bytes()
        with pytest.raises(UsageError, match="--target_epsilon is of the other kind"):
            script.main([*flags, "--target_epsilon", second, "--resume_from_checkpoint", "latest"])
        assert (tmp_path / "run" / "private" / "ledger.jsonl").read_bytes() == before
        assert {path.name for path in (tmp_path / "run").iterdir()} == {"private"}
        script.main([*flags, "--target_epsilon", first, "--resume_from_checkpoint", "latest"])
        assert (tmp_path / "run" / ("release" if first == "1" else FOLDER)).is_dir()

    def test_no_other_run_goes_into_its_folder(self, made, tmp_path):
        shutil.copytree(made / FOLDER, tmp_path / "run" / FOLDER)
        with pytest.raises(UsageError, match="another run"):
            RunFolder(tmp_path / "run").refuse_another_run()


class TestRefusals:
    """Whoever takes a release does not take this."""

    def test_load_verified_push_and_app(self, made):
        name = str(made / FOLDER)
        for take in (load_verified, files_to_push, Shelf([name], Limits()).open):
            with pytest.raises(DiffusersDPError, match=WORDS) as refusal:
                take(name)
            assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize("command", ["verify", "push", "sample", "evaluate"])
    def test_commands(self, command, made, tmp_path, capsys):
        name = str(made / FOLDER)
        flags = {
            "verify": [name],
            "push": [name, "--hub_model_id", "me/model"],
            "sample": [name, "--num_images", "3", "--output_dir", str(tmp_path / "drawn")],
            "evaluate": ["--model", name, "--real", "somewhere", "--output_dir", str(tmp_path / "evaluation")],
        }[command]
        with pytest.raises(SystemExit) as stop:
            cli.main([command, *flags])
        lines = capsys.readouterr().err.splitlines()
        assert stop.value.code in (2, 4) and WORDS in lines[-1] and lines[-1].startswith("error: ")
        assert command != "evaluate" or "--images" in lines[-1]
        assert not list(tmp_path.iterdir())

    def test_no_private_run_begins_with_it(self, made, tmp_path, monkeypatch):
        """Its weights may hold the sensitive images, so that DP-SGD after it would guarantee nothing."""
        flags = [*TINY_RUN, "--train_data_dir", str(made.parent / "images"), "--output_dir", str(tmp_path / "run")]
        script = load("dp_diffusion", monkeypatch)
        with pytest.raises(UsageError, match=WORDS):
            script.main([*flags, "--pretrained_model_name_or_path", str(made / FOLDER)])
        assert not list(tmp_path.glob("run/*"))
        with pytest.raises(UsageError, match=WORDS):  # as from the Hub, where the flag names no folder
            public_models.load(str(made / FOLDER), 3, shape=(1, 8, 8))


def save_one(folder):
    pipeline = DPImagePipeline(make_unet(), EDMDPMSolverMultistepScheduler())
    return save_without_guarantee(folder, pipeline, METHODS["dpdm"])


def test_the_folder_is_its_owner_s_whatever_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        assert save_one(tmp_path).stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_what_a_kill_left_unfinished_is_removed(tmp_path):
    """It holds weights without a word of what they are."""
    (tmp_path / f".{FOLDER}-killed" / FOLDER).mkdir(parents=True)
    save_one(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


def test_a_power_cut_leaves_it_whole_or_not_at_all(tmp_path):
    """Under its name lies what was written, file by file, and after the end it lies there."""
    (tmp_path / "run").mkdir()
    cuts, disk = [], Disk(tmp_path / "run", lambda: cuts.append(disk.state()))
    with disk.watched():
        saved = save_one(tmp_path / "run")
    whole = {path.relative_to(saved): path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    for number, state in enumerate([*cuts, disk.state()]):
        write_state(state, tmp_path / f"{number}")
        found = tmp_path / f"{number}" / FOLDER
        assert not found.exists() or {name: (found / name).read_bytes() for name in whole} == whole
    assert len(whole) > 4 and found.exists()
