# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the command says of itself."""

import subprocess
import sys

import pytest

from diffusers_dp import cli
from diffusers_dp.methods.config import CONFIGS


LINES = [
    *(f"train {name}" for name in CONFIGS),
    "plan",
    "data",
    "app",
    "methods",
    "recommend",
    "audit release x --members a --holdout b",
    "verify x",
    "dossier x",
]
LINES += ["evaluate --images x", "push x --hub_model_id a/b", "sample x --num_images 1 --output_dir y"]


def test_a_typo_is_refused_before_torch_is_loaded():
    """In one process, for all commands and methods."""
    code = (
        "import sys; from diffusers_dp import cli\n"
        f"for line in {LINES}:\n"
        "    try: cli.main([*line.split(), '--targt_epsilon', '1'])\n"
        "    except SystemExit as end: print(end.code)\n"
        "assert not {'torch', 'transformers', 'diffusers'} & set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.split()) == (0, ["2"] * len(LINES)), ended.stderr
    assert ended.stderr.count("--targt_epsilon") == len(LINES)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "trian dpdm",
            "argument COMMAND: there is no 'trian', and the nearest is 'train'; `diffusers-dp --help` lists",
        ),
        ("train moment", "argument method: there is no 'moment', and the nearest is 'moments'; "),
        ("plan --method pate", "argument --method: there is no 'pate', and the nearest is 'g_pate'; "),
        ("sample --model runs/demo/release", "the release is given without --model; "),
        ("verify --model runs/demo/release", "the release is given without --model; "),
        ("verify no/such/folder", "'no/such/folder', which is not a folder here, cannot be a name on the Hub"),
        ("train", "the following arguments are required: method; `diffusers-dp plan` with the facts of your images"),
    ],
)
def test_a_name_that_is_none_finds_the_right_one(line, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(line.split())
    assert capsys.readouterr().err.startswith(f"error: {words}")


@pytest.mark.parametrize(("line", "words"), [("help", "commands:"), ("help verify", "--base")])
def test_help_is_a_command_too(line, words, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(line.split())
    assert words in capsys.readouterr().out
