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


def completed(script, *words):
    line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_diffusers_dp"
    line = f'{script}\n{line}; echo "${{COMPREPLY[@]}}"'
    told = subprocess.run(["bash"], input=line, capture_output=True, text=True, check=True)
    return told.stdout.split()


def test_a_shell_completes_commands_methods_and_flags(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    cli.main(["completion"])
    script = capsys.readouterr().out
    assert completed(script, "diffusers-dp", "pl") == ["plan"]
    assert set(completed(script, "diffusers-dp", '""')) == set(cli.COMMANDS)
    assert set(completed(script, "diffusers-dp", "train", '""')) == set(CONFIGS)
    assert completed(script, "diffusers-dp", "train", "dp_fe") == ["dp_feta"]
    assert completed(script, "diffusers-dp", "train", "dp_feta", "--mix_p") == ["--mix_public_images"]
    assert completed(script, "diffusers-dp", "train", "dpdm", "--mix_p") == []
    assert completed(script, "diffusers-dp", "train", "dpdm", "--help_") == ["--help_all"]
    assert completed(script, "diffusers-dp", "train", "dpdm", "--train_data_dir", "sc") == ["scans"]
    assert completed(script, "diffusers-dp", "sample", "sc") == ["scans"]
    assert completed(script, "diffusers-dp", "sample", "x", "--num_im") == ["--num_images"]
    assert completed(script, "diffusers-dp", "audit", "mech") == ["mechanism"]
    assert completed(script, "diffusers-dp", "app", "--server_p") == ["--server_port"]
