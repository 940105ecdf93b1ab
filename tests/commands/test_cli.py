# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the command says of itself."""

import subprocess
import sys

import pytest

from diffusers_dp import __version__, cli


def test_the_version_and_the_module():
    said = subprocess.run([sys.executable, "-m", "diffusers_dp", "--version"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, f"diffusers_dp {__version__}\n")


def test_help_has_a_line_for_each_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    said = capsys.readouterr().out.splitlines()
    assert all(f"  {name:<10}{text}" in said for name, text in cli.COMMANDS.items())
