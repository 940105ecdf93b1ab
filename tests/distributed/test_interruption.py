# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""SIGTERM, in every stage of every script: what was begun is finished, and nothing that was paid for is lost."""

import os
import signal
import subprocess
import sys
import time

import pytest
from diffusers.training_utils import EMAModel

from diffusers_dp import SensitiveImages
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.distributed.interruption import stoppable, uninterrupted
from diffusers_dp.errors import BudgetExceeded, Interrupted
from diffusers_dp.mechanisms import sampled
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.runs import run as run_module
from diffusers_dp.runs.dp_sgd import last_affordable_step
from diffusers_dp.runs.stages import StageTable
from support.few import few
from support.flags import DIFFUSION_METHODS, RESUME, SHORT_FETA_PRO, SHORT_RUN
from support.runs import check_finished, load, read_ledger, status, write_images


FLAGS = SHORT_FETA_PRO
OWN = {
    "feta_pro": SHORT_FETA_PRO[len(SHORT_RUN) :],
    "dp_feta": "--spatial_steps 1 --num_central_images 2 --expert spatial_batch_size=6".split(),
    "dpdm": [],
    "dp_diffusion": [],
}


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def after(function, happened):
    """`function`, after which `happened` is called, and what it returned."""

    def both(*arguments, **options):
        result = function(*arguments, **options)
        happened()
        return result

    return both


@pytest.mark.parametrize("method", few(DIFFUSION_METHODS))
def test_in_dp_sgd_the_step_is_finished_and_saved(method, tmp_path, monkeypatch):
    script, run, steps = load(method, monkeypatch), tmp_path / "run", []
    given = [*SHORT_RUN, *OWN[method], *write_images(tmp_path / "images"), "--output_dir", str(run)]
    before = signal.getsignal(signal.SIGTERM)

    def third():
        steps.append(1)
        if len(steps) == 3:
            sigterm()

    with monkeypatch.context() as patch:
        patch.setattr(SensitiveImages, "noisy_gradient", after(SensitiveImages.noisy_gradient, third))
        with pytest.raises(Interrupted, match="--resume_from_checkpoint latest"):
            script.main(given)
    assert status(run)["exit_code"] == 75 and (run / "private" / "checkpoint-3").is_dir()
    assert [row["steps_executed"] for row in read_ledger(run)[1] if row["stage"] == "dp_sgd"] == [2, 1]
    script.main([*given, *RESUME])
    check_finished(run, 4)
    assert [row["steps_reserved"] for row in read_ledger(run)[1] if row["stage"] == "dp_sgd"] == [2, 2, 1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_leaves_a_status(tmp_path, monkeypatch):
    """It ends at once, in the middle of a step; the run goes on from the checkpoint before."""
    script, run, steps = load("dpdm", monkeypatch), tmp_path / "run", []
    given = [*SHORT_RUN, *write_images(tmp_path / "images"), "--output_dir", str(run)]

    def third():
        steps.append(1)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
        try:
            patch.setattr(SensitiveImages, "noisy_gradient", after(SensitiveImages.noisy_gradient, third))
            script.main(given)
        finally:
            signal.signal(signal.SIGINT, before)
    assert status(run)["exit_code"] == 130 and "--resume_from_checkpoint latest" in status(run)["message"]
    assert (run / "private" / "checkpoint-2").is_dir()
    script.main([*given, *RESUME])
    check_finished(run, 4)


def test_reservations_end_at_checkpoints(tmp_path, monkeypatch):
    """Also after a stop between two of them: a later crash loses an interval at most."""
    script, run = load("dpdm", monkeypatch), tmp_path / "run"
    given = [*SHORT_RUN, "--max_train_steps", "9", "--checkpointing_steps", "4", *write_images(tmp_path / "images")]
    given += ["--output_dir", str(run)]
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(SensitiveImages, "noisy_gradient", after(SensitiveImages.noisy_gradient, sigterm))
        script.main(given)
    script.main([*given, *RESUME])
    steps = [(row["steps_reserved"], row["steps_executed"]) for row in read_ledger(run)[1]]
    assert steps == [(4, 1), (3, 3), (4, 4), (1, 1)]


def test_a_query_is_finished_and_its_answer_kept(script, flags, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(MeanImages, "answer", after(MeanImages.answer, sigterm))
        with pytest.raises(Interrupted):
            script.main(flags)
    assert (tmp_path / "run" / "private" / "answers" / "central_images").is_dir()
    script.main([*flags, *RESUME])
    assert [row["stage"] for row in read_ledger(tmp_path / "run")[1]][:2] == ["central_images", "frequency_features"]
    check_finished(tmp_path / "run", 4)


def test_a_warm_up_ends_at_once(script, flags, tmp_path, monkeypatch):
    stages = []
    with monkeypatch.context() as patch:
        patch.setattr(EMAModel, "step", after(EMAModel.step, sigterm))
        patch.setattr(StageTable, "done", lambda table, stage, ledger: stages.append(stage))
        with pytest.raises(Interrupted):
            script.main(flags)
    assert stages == ["central images", "frequency features"] and status(tmp_path / "run")["exit_code"] == 75


def test_while_images_are_read_nothing_was_begun(script, flags, tmp_path, monkeypatch):
    monkeypatch.setattr("diffusers_dp.runs.run.load_images", after(run_module.load_images, sigterm))
    with pytest.raises(Interrupted):
        script.main(flags)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(second, code):
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background\n"
        "from diffusers_dp.distributed.interruption import stoppable, uninterrupted\n"
        "try:\n"
        "    with stoppable(), uninterrupted():\n"
        "        print('begun', flush=True)\n"
        "        time.sleep(300)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(second)
        while second == signal.SIGTERM and process.poll() is None:  # two that come at once are one
            process.send_signal(second)
            time.sleep(0.1)
        process.wait(60)
    assert process.returncode == code


def test_an_error_is_not_hidden_by_a_signal():
    with pytest.raises(ZeroDivisionError), stoppable(), uninterrupted():
        sigterm()
        raise ZeroDivisionError


def make_ledger(spent):
    ledger = PrivacyLedger(None, target_epsilon=1.0, target_delta=1e-5, num_images=1000, accountant="rdp")
    sigma = ledger.calibrate(sampled(0.05), 10)
    row = LedgerRow("dp_sgd", sampled(0.05, sigma))
    if spent:
        ledger.reserve(LedgerRow("dp_sgd", sampled(0.05, sigma), spent))
    return ledger, row


@pytest.mark.parametrize(("spent", "step", "last"), [(0, 0, 10), (4, 4, 10), (6, 4, 8), (9, 0, 1), (10, 3, 3)])
def test_lost_steps_shorten_a_run(spent, step, last, capsys):
    ledger, row = make_ledger(spent)
    assert last_affordable_step(ledger, row, step, 10) == last
    assert ("this run ends after" in capsys.readouterr().out) is (last < 10)


def test_a_run_that_lost_all_steps():
    ledger, row = make_ledger(10)
    with pytest.raises(BudgetExceeded, match="another --output_dir"):
        last_affordable_step(ledger, row, 0, 10)
