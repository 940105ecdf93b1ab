# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The wheel and the sdist, built from a copy of what they are made of."""

import os
import shutil
import subprocess
import sys

from support.places import ROOT


PACKAGED = ("diffusers_dp", "pipelines", "training", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def said(*command, cwd):
    """What a command prints; in its environment nothing leads to the repository."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    ended = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def source_in(folder):
    """The copy, so that a build leaves nothing in the repository."""
    folder.mkdir()
    for name in PACKAGED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def build(kind, source, folder):
    """By the build backend, without the isolation that would download it."""
    code = f"import sys; from setuptools.build_meta import build_{kind} as build; print(build(sys.argv[1]))"
    return folder / said(sys.executable, "-c", code, folder, cwd=source).splitlines()[-1]
