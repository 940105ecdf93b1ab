# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that is killed at any moment goes on, spends no more than it reserved, and never uses noise twice."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from diffusers_dp.verify import verify
from support.flags import RESUME, SHORT_FETA_PRO, SHORT_RUN
from support.power_cut import Disk, start, watch, write_state
from support.runs import check_finished, read_ledger, status, write_images


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    return [*SHORT_FETA_PRO, *write_images(tmp_path_factory.mktemp("data") / "images")]


def check_fresh(*noted):
    """What processes noted, one after the other: no noise twice. Returns the number of steps they took."""
    times = Counter(line for lines in noted for line in lines)
    steps = times.pop("step", 0)
    assert set(times.values()) <= {1}, "noise was used twice"
    return steps


@pytest.mark.slow
def test_a_power_cut_before_every_sync(script, flags, tmp_path, monkeypatch):
    """All that was not synced is lost then. The run goes on to its end all the same, in every case."""
    noted, cuts, flags = [], {}, [*flags, "--checkpointing_steps", "3"]  # two steps of three may be lost
    watch(lambda line: noted.append(line), monkeypatch.setattr)
    (tmp_path / "run").mkdir()
    disk = Disk(tmp_path / "run", lambda: cuts.update({disk.state(): list(noted)}))  # the last one with this state
    with disk.watched():
        script.main([*flags, "--output_dir", str(tmp_path / "run")])
    cuts[disk.state()] = list(noted)
    check_finished(tmp_path / "run", check_fresh(noted))
    assert len(cuts) > 15 and {before.count("step") for before in cuts.values()} >= {0, 2, 3, 4}
    for number, (state, before) in enumerate(cuts.items()):
        run = tmp_path / f"run_{number}"
        write_state(state, run)
        noted.clear()
        script.main([*flags, "--output_dir", str(run), *RESUME])
        check_finished(run, check_fresh(before, noted))
    assert verify(run / "release")[1] == []


LONG = "--max_train_steps 24 --checkpointing_steps 3 --restart_slack 12".split()


def wait_until(happened, process, patience=120):
    """Whether it happened before the process ended."""
    deadline = time.monotonic() + patience
    while not happened() and process.is_alive():
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.01)
    return happened()


def kill_and_resume(script, flags, folder, monkeypatch):
    """Kills a process at a random moment, of three one before the first step, and goes on with its run."""
    run, noted = folder / "run", []
    flags = [*flags, *LONG, "--output_dir", str(run)]
    process = start("feta_pro", flags, folder / "said", drawn=folder / "drawn")
    wait_until((run / "private" / "lock").exists, process)
    steps = random.SystemRandom().randrange(-12, 25)
    wait_until(lambda: (folder / "drawn").read_text().count("step") >= steps, process)
    time.sleep(random.SystemRandom().uniform(0, 0.2 if steps > 0 else 3))
    process.kill()
    process.join()
    before = [line for line in (folder / "drawn").read_text().splitlines() if line == "step" or len(line) == 32]
    with monkeypatch.context() as patch:
        watch(noted.append, patch.setattr)
        script.main([*flags, *RESUME])
    check_finished(run, check_fresh(before, noted), at_most=36)


def test_a_kill(script, flags, tmp_path, monkeypatch):
    kill_and_resume(script, flags, tmp_path, monkeypatch)


@pytest.mark.slow
def test_many_kills(script, flags, tmp_path, monkeypatch):
    for number in range(25):
        (tmp_path / str(number)).mkdir()
        kill_and_resume(script, flags, tmp_path / str(number), monkeypatch)


def test_sigterm_to_the_process_that_the_lock_names(flags, tmp_path):
    """The step is finished and saved, and the exit code says that it can go on."""
    run = tmp_path / "run"
    many = "--max_train_steps 2000 --checkpointing_steps 2000".split()
    process = start("feta_pro", [*flags, *many, "--output_dir", str(run)], tmp_path / "said")
    ledger = run / "private" / "ledger.jsonl"
    assert wait_until(lambda: ledger.exists() and "dp_sgd" in ledger.read_text(), process)
    time.sleep(0.3)
    os.kill(int((run / "private" / "lock").read_text()), signal.SIGTERM)
    process.join()
    assert process.exitcode == 75 == status(run)["exit_code"]
    sentence = (tmp_path / "said.err").read_text().strip().splitlines()[-1]
    assert sentence == f"error: {status(run)['message']}" and "--resume_from_checkpoint latest" in sentence
    steps = read_ledger(run)[1][-1]["steps_executed"]
    assert 0 < steps < 2000 and (run / "private" / f"checkpoint-{steps}").is_dir()


def test_a_full_disk(script, flags, tmp_path):
    """Files end at 20,000 bytes: room for the ledger, none for weights. One sentence, and the run goes on when there
    is room."""
    run = tmp_path / "run"
    for method in ("dpdm", "feta_pro"):  # the weights of a checkpoint, and those after a warm-up, which others write
        given = [
            *(SHORT_RUN if method == "dpdm" else SHORT_FETA_PRO),
            *flags[len(SHORT_FETA_PRO) :],
            "--output_dir",
            str(run / method),
        ]
        process = start(method, given, tmp_path / "said", file_size=20_000)
        process.join()
        said = (tmp_path / "said.err").read_text()
        assert process.exitcode == 2 and "Traceback" not in said, said[-3000:]
        last = said.strip().splitlines()[-1]
        assert last.startswith("error: --output_dir cannot be written (File too large): make room")
        assert not (run / method / "release").exists()
    script.main([*given, *RESUME])
    check_finished(run / method, 4)
