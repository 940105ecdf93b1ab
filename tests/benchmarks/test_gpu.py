# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `benchmarks/gpu.py` does on a card is walked through on a CPU: parts go on where they were, steps agree."""

import json
import shlex
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.images import write_dataset
from support.places import ROOT, module_of


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def gpu():
    return module_of(ROOT / "benchmarks" / "gpu.py")


@pytest.fixture(scope="module")
def steps():
    return module_of(ROOT / "benchmarks" / "gpu_steps.py")


def rows_of(output):
    return [json.loads(line) for line in (output / "gpu.jsonl").read_text().splitlines()]


def script(text):
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(text.replace('{', '{{').replace('}', '}}'))} {{run}}"


def test_a_part_goes_on_in_the_same_call_and_one_that_failed_in_the_next(gpu, tmp_path, monkeypatch):
    twice = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1] + '.n'); n = p.exists(); p.touch(); sys.exit(75 * (not n))"
    )
    fails = twice.replace("75", "3")
    listed = [gpu.Part("(x) twice", script(twice)), gpu.Part("(y) fails first", script(fails))]
    monkeypatch.setattr(gpu, "parts", lambda: iter(listed))

    def call(seconds=600.0, only=""):
        return gpu.run(tmp_path, tmp_path, dry=True, only=only, seconds=seconds)

    assert call(seconds=1.0) == 0 and not (tmp_path / "gpu.jsonl").exists()  # no part begins that cannot end
    assert call(only="twice") == 0 and [row["status"] for row in rows_of(tmp_path)] == [75, "done"]
    assert call() == 1 and [row["status"] for row in rows_of(tmp_path)][2:] == ["failed"]
    assert call() == 0 and [row["part"] for row in rows_of(tmp_path)][3:] == ["(y) fails first"]
    assert call() == 0 and len(rows_of(tmp_path)) == 4  # all is done


def test_a_part_that_takes_too_long_is_asked_to_stop(gpu, tmp_path):
    waits = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print('up', flush=True); time.sleep(60)"
    )
    row = gpu.run_part(gpu.Part("(x) waits", script(waits)), tmp_path, tmp_path, dry=True, seconds=5)
    assert row["status"] == gpu.UNFINISHED and row["seconds"] < 30 and row["said"] == ["up"]


def test_every_command_of_a_part_is_one(gpu, steps):
    """The order of the issue, most telling first; flags of a step's parts are those of `gpu_steps.py`."""
    listed = list(gpu.parts())
    assert (
        sorted({part.name[1] for part in listed}) == list("abcdefg") == list(dict.fromkeys(p.name[1] for p in listed))
    )
    assert all(part.seconds <= gpu.PART for part in listed if part.name[1] != "f")
    for part in listed:
        words = shlex.split(part.command.format(run="r", runs="s", data="d", rows="f"))
        assert words[0] in (sys.executable, "env") and "{" not in " ".join(words)


def test_the_tests_that_run_on_a_card_are_there(gpu):
    assert all((ROOT / "tests" / place).exists() for place in gpu.MENDED.split())


def measured(steps, tmp_path, part, *flags):
    rows = tmp_path / "gpu.jsonl"
    code = steps.main([part, "--tiny", "--images", "2", "--multiplicities", "2", "--rows", str(rows), *flags])
    return code, rows_of(tmp_path) if rows.exists() else []


def test_steps_are_measured_case_by_case_and_never_twice(steps, tmp_path):
    assert measured(steps, tmp_path, "formats", "--seconds", "-1") == (steps.UNFINISHED, [])
    code, rows = measured(steps, tmp_path, "formats")
    assert code == 0 and rows[0]["rows_per_second"] > 0 and rows[0]["case"]["precision"] == "float32"
    assert measured(steps, tmp_path, "formats", "--seconds", "-1") == (0, rows)
    for part in ("calls", "graph", "profile"):
        code, rows = measured(steps, tmp_path, part)
        assert code == 0 and rows[-1]["part"] == part and "failed" not in rows[-1]
    assert sum(rows[-1]["shares"].values()) <= 1


def test_the_fastest_step_is_profiled(steps):
    known = [
        {"case": vars(steps.Case(32, 64, precision)), "rows_per_second": speed}
        for precision, speed in (("float32", 5.0), ("bf16", 9.0), ("tf32", 7.0))
    ]
    assert steps.cases("profile", [32, 1], [16], known) == [steps.Case(32, 64, "bf16"), steps.Case(1, 16)]


@pytest.mark.parametrize("changes", [{"channels_last": True}, {"in_a_call": 1}, {"how": "graph"}], ids=str)
def test_every_way_gives_the_same_gradients(steps, changes):
    """Of fixed draws; on a CPU the whole way but the capture of a graph."""
    totals = []
    for case in (steps.Case(2, 3), steps.Case(2, 3, **changes)):
        with steps.as_it_was():
            steps.rules.IMAGES_IN_A_CALL = case.in_a_call
            torch.manual_seed(0)
            trained, shape = steps.build(case, CPU, steps.TINY)
            torch.manual_seed(1)
            loss = steps.with_fixed_draws(trained, case, shape, CPU)
            fixed = steps.Trained(trained.module, trained.model, loss)
            totals.append(steps.private_step(fixed, replace(case, how="eager"), shape, CPU)())
    for name, expected in totals[0].items():
        assert torch.allclose(totals[1][name], expected, rtol=1e-3, atol=1e-8), name


def test_a_compiled_forward_and_backward_pass_gives_the_same_gradients(steps):
    """In one graph: nothing of the engine's hooks is in it."""
    case = steps.Case(2, 3)
    totals = []
    for how in ("eager", "taps"):
        torch.manual_seed(0)
        trained, shape = steps.build(case, CPU, steps.TINY)
        torch.manual_seed(1)
        images, labels = steps.blanks(case, 3, shape, CPU)
        if how == "taps":
            torch._dynamo.reset()
            counters.clear()
            step = steps.tapped(trained, case, images, labels)
            step()
        else:
            fixed = steps.with_fixed_draws(trained, case, shape, CPU)
            counted = torch.ones(3, dtype=torch.bool)
            step = partial(
                steps.clipped_gradient_sum, trained.model, fixed, [(images, labels, counted, None)],
                max_grad_norm=steps.MAX_NORM, noise_multiplicity=2, generator=PrivateGenerator(),
            )  # fmt: skip
        totals.append(step())
    assert counters["stats"]["unique_graphs"] <= 2 and not counters["graph_break"]
    assert totals[0].keys() == totals[1].keys()
    for name, expected in totals[0].items():
        assert torch.allclose(totals[1][name], expected, rtol=1e-4, atol=1e-9), name


def test_a_case_that_fails_says_why(steps, monkeypatch):
    def broken(*_):
        raise torch.OutOfMemoryError("too much\nof it")

    monkeypatch.setattr(steps, "private_step", broken)
    with steps.as_it_was():
        assert steps.measure(steps.Case(1, 2), CPU, steps.TINY) == {"failed": "OutOfMemoryError: too much"}


@pytest.mark.slow
def test_a_dry_run_walks_through_every_part(gpu, tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        images = rng.integers(0, 256, (40, 1, 28, 28), dtype=np.uint8)
        write_dataset(tmp_path / "data", images, np.arange(40) % 10, map(str, range(10)), split)
    assert gpu.run(tmp_path / "out", tmp_path / "data", dry=True, only="", seconds=1e5) == 0
    done = [row["part"] for row in rows_of(tmp_path / "out") if row.get("status") == "done"]
    assert done == [part.name for part in gpu.parts()]
