# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The start of a training script: what needs no torch does not wait for it, and what is refused early is."""

import json
import os
import signal
import subprocess
import sys

import pytest

from diffusers_dp.distributed import processes
from diffusers_dp.distributed.launcher import SIZES
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.registry import METHODS
from support.places import ROOT
from support.runs import load


#: By method, the last of those that share one.
SCRIPTS = {script: name for name, method in METHODS.items() if (script := method.script)}
DECLARED = "--num_train_images 1437 --accountant rdp --target_epsilon 1 --output_dir run".split()
#: Flags of a start, its exit code, and what it says.
STARTS = {
    "typo": (["--sede", "3"], 2, "error: --sede is not a flag; the nearest is --seed."),
    "help": (["--help"], 0, "--target_epsilon"),
    "dry run": (["--dry_run", *DECLARED], 0, "together: epsilon "),
    "plan": ([*DECLARED, "--train_batch_size", "2000"], 2, "error: --train_batch_size 2000 is more than the 1437"),
    "folder": ([*DECLARED, "--output_dir", "taken"], 2, "error: --output_dir taken holds another run: choose another"),
}  # fmt: skip
#: Each as a program of its own would be, one after the other; then what they loaded.
ALL_STARTS = """
import contextlib, io, json, os, runpy, sys

ends = []
for program, flags in json.loads(sys.argv[1]):
    os.environ.pop("OMP_WAIT_POLICY", None)
    said, sys.argv, code = io.StringIO(), [program, *flags], 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if program.endswith(".py"):
                runpy.run_path(program, run_name="__main__")
            else:
                runpy.run_module(program, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
    loaded = sorted({"torch", "accelerate", "diffusers", "opacus"} & set(sys.modules))
    ends.append([code, said.getvalue(), loaded, os.environ["OMP_WAIT_POLICY"]])
print(json.dumps(ends))
"""


def test_what_ends_before_training_loads_no_torch(tmp_path):
    """Help, a typo, a dry run, a plan that cannot be, a folder in use: of each script, and by `diffusers-dp train`.
    How threads wait is said before they exist."""
    (tmp_path / "taken" / "private" / "cache").mkdir(parents=True)
    programs = {name: (str(ROOT / path), []) for path, name in SCRIPTS.items()}
    programs["command"] = "diffusers_dp.cli", ["train", "dpdm"]
    # A plan that cannot be is one of DP-SGD on samples.
    others = {
        SCRIPTS[f"training/train_{name}.py"] for name in ("mean_embedding", "moments", "private_evolution", "teachers")
    }
    starts = [(name, what) for name in programs for what in STARTS if what != "plan" or name not in others]
    given = [(programs[name][0], programs[name][1] + STARTS[what][0]) for name, what in starts]
    environment = {key: value for key, value in os.environ.items() if key not in SIZES and key[:11] != "ACCELERATE_"}
    done = subprocess.run(
        [sys.executable, "-c", ALL_STARTS, json.dumps(given)], capture_output=True, text=True, cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (name, what), (code, said, loaded, waiting) in zip(starts, json.loads(done.stdout), strict=True):
        _, expected, words = STARTS[what]
        assert (code, loaded, waiting) == (expected, [], "PASSIVE") and words in said, (name, what, said)
        assert expected == 0 or said.count("error: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("variable", "flags", "words"),
    [
        ("ACCELERATE_USE_DEEPSPEED", [], "DeepSpeed"),
        ("ACCELERATE_DEBUG", ["--mixed_precision", "bf16"], "--mixed_precision bf16 is not supported"),
        (None, ["--mixed_precision", "bf16"], "--mixed_precision bf16 is not supported"),
    ],
)
def test_what_the_processes_cannot_do_is_refused_before_the_plan(variable, flags, words, monkeypatch, capsys):
    """Also in a dry run."""
    monkeypatch.setattr(processes, "is_bf16_available", lambda: False)
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    with pytest.raises(UsageError, match=words):
        load("dpdm", monkeypatch).main([*DECLARED, "--dry_run", *flags])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("rank", "stopped", "code"), [("1", False, 0), ("0", False, -signal.SIGABRT), ("0", True, 130), ("1", True, 130)]
)
def test_a_process_that_has_nothing_left_to_do_is_not_taken_down_by_its_libraries(rank, stopped, code):
    """An abort at the end of the interpreter would end the first process too, which still writes the release; and it
    would hide why a run stops."""
    program = (
        "import atexit, os\natexit.register(os.abort)\nfrom diffusers_dp.runs.launch import launch\n"
        f"def main():\n    print('done')\n    {'raise KeyboardInterrupt' if stopped else ''}\nlaunch(main)"
    )
    environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == code and ended.stdout == "done\n"
