# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the command says of itself."""

import re
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest

from diffusers_dp import __version__, cli
from diffusers_dp.methods.config import CONFIGS


def test_the_version_and_the_module():
    said = subprocess.run([sys.executable, "-m", "diffusers_dp", "--version"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, f"diffusers_dp {__version__}\n")


def test_help_has_a_line_for_each_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    said = capsys.readouterr().out.splitlines()
    assert all(f"  {name:<12}{text}" in said for name, text in cli.COMMANDS.items())


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


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--lr", "learning_rate"), ("--batch_size", "train_batch_size"), ("--eps", "target_epsilon"),
        ("--random_flip", "augmentations"), ("--image_size", "resolution"), ("--num_epochs", "max_train_steps"),
        ("--target-epsilonn", "target_epsilon"),
    ],
)  # fmt: skip
def test_the_name_of_another_library_finds_ours(given, meant, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", "dpdm", given, "1"])
    assert f"is not a flag; the nearest is --{meant}." in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--lr", "--random_flip", "--qwertz"])
def test_what_a_method_does_not_have_has_no_nearest(given, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", "moments", given, "1"])
    assert f"{given} is not a flag; --help_all lists all." in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["qwertz"])
    assert "There is no command 'qwertz'; `diffusers-dp --help` lists all." in capsys.readouterr().err


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


def test_every_flag_of_every_method_is_completed(capsys):
    cli.main(["completion"])
    script = capsys.readouterr().out
    for name, config in CONFIGS.items():
        offered = re.search(rf"^_shtab_diffusers_dp_train_{name}_option_strings=\((.*)\)$", script, re.MULTILINE)
        assert {f"--{flag.name}" for flag in fields(config)} <= set(offered[1].split())


def test_zsh_has_a_script_of_its_own(capsys):
    cli.main(["completion", "zsh"])
    script = capsys.readouterr().out
    assert script.startswith("#compdef diffusers-dp") and '"--mix_public_images[' in script
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n", "/dev/stdin"], input=script, text=True, check=True)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["completion", "csh"])
    assert "invalid choice: 'csh'" in capsys.readouterr().err


def test_the_page_is_a_command(capsys):
    """It comes with the package, where there is no app.py; what it serves is in `tests/app`."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["app", "--max_images", "0"])
    assert ended.value.code == 2 and "--max_images" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        cli.main(["app", "--help"])
    said = capsys.readouterr().out
    assert "diffusers-dp app" in said and "--server_name" in said and "--max_model_mb" in said
