# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The method of docs/architecture.md, added to a copy of the repository: one shared line is edited, and every command
knows it."""

import json
import os
import re
import subprocess
import sys

import pytest

from support.places import ROOT


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SMALL = (
    "--max_train_steps 2 --train_batch_size 64 --noise_multiplicity 1 --block_out_channels 4,8 --warm_steps 1 "
    "--num_inference_steps 2 --accountant rdp --target_epsilon 2"
).split()
CANARIES = "--num_canaries 100 --audit_steps 1".split()
#: Commands, their exit codes, and what they say.
KNOWN = (
    (["methods", "warm_dpdm"], 0, "script: training/train_warm_dpdm.py"),
    (["train", "warm_dpdm", *SMALL, "--dry_run"], 0, "central images"),
    (["train", "warm_dpdm", *SMALL, "--warm_steps", "0"], 2, "--warm_steps is 0; give an integer that is at least 1"),
)
WHOLE = (
    (["plan", "--method", "warm_dpdm", *SMALL, "--details"], 0, "a step of DP-SGD: 64.0 images"),
    (["train", "warm_dpdm", *SMALL, "--output_dir", "run"], 0, "Released run/release"),
    (["verify", "run/release"], 0, "numbers consistent"),
    (["audit", "run", "--method", "warm_dpdm", *SMALL, *CANARIES, "--output_dir", "audit"], 4, "noise off"),
)
#: What is loaded once for `WHOLE`.
HEAVY = ["torch", "diffusers_dp.audit.training_run", "diffusers_dp.runs.diffusion_run"]
#: Runs each in a process of its own, which is forked from one that has loaded what is heavy.
ALL_COMMANDS = """
import importlib, json, multiprocessing, os, sys

from diffusers_dp import cli

[importlib.import_module(name) for name in sys.argv[2:]]
for number, argv in enumerate(json.loads(sys.argv[1])):
    with open(f"said_{number}", "w") as said:
        def run():
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            cli.main(argv)
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start(), process.join()
    print(process.exitcode)
"""


@pytest.fixture
def copy(tmp_path):
    """The repository and the two new files."""
    from mutants.__main__ import copy_of  # reads all faults

    root = copy_of(ROOT, tmp_path / "copy")
    files = [file for file in FILE.findall(PAGE) if "warm_dpdm" in file[0]]
    assert len(files) == 2
    for name, text in files:
        assert not (root / name).exists(), "a new file, and no edit"
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("commands", [KNOWN, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["known", "whole"])
def test_a_new_method_edits_one_shared_line(commands, copy, tmp_path):
    shared, line = re.search(r"The shared line .* `([\w/]+\.py)`: `([^`]+)`\.$", PAGE, re.MULTILINE).groups()
    before = (copy / shared).read_text()
    after = before.replace('    "teachers",\n', f'    "teachers",\n    {line}\n')
    assert len(after.splitlines()) == len(before.splitlines()) + 1
    (copy / shared).write_text(after)
    environment = {"PYTHONPATH": os.pathsep.join([str(copy), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALL_COMMANDS, json.dumps([argv for argv, _, _ in commands]),
         *(HEAVY if commands is WHOLE else [])],
        capture_output=True, text=True, cwd=tmp_path, env={**environment, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for number, (code, (argv, expected, words)) in enumerate(zip(done.stdout.split(), commands, strict=True)):
        said = (tmp_path / f"said_{number}").read_text()
        assert int(code) == expected and words in said, (argv, code, said)
