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
    "sign x --key k",
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


def test_a_misspelt_command_finds_the_right_one(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["trian", "dpdm"])
    assert capsys.readouterr().err == "error: There is no command 'trian'; the nearest is 'train'.\n"
