# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `pip install` gives is enough to train."""

import os
import shutil
import subprocess
import sys
import tarfile

import pytest

from support.places import ROOT


PACKAGED = ("diffusers_dp", "pipelines", "training", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
SHORT = (
    "--max_train_steps 1 --spatial_steps 1 --frequency_steps 1 --generator_steps 1 --generator_batch_size 10 "
    "--num_auxiliary_images 20 --noise_multiplicity 1 --train_batch_size 100 --num_inference_steps 2 --skip_preflight "
    "--block_out_channels 4,8 --num_frequency_features 50 --generator_channels 4 --accountant rdp"
).split()


def said(*command, cwd):
    """What a command prints; in its environment nothing leads to the repository."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    ended = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def build(kind, source, folder):
    """By the build backend, without the isolation that would download it."""
    code = f"import sys; from setuptools.build_meta import build_{kind} as build; print(build(sys.argv[1]))"
    return folder / said(sys.executable, "-c", code, folder, cwd=source).splitlines()[-1]


@pytest.mark.slow
def test_a_wheel_made_of_the_sdist_trains_in_an_empty_folder(tmp_path):
    """With the dependencies that are installed here: they are not downloaded anew."""
    pytest.importorskip("pip")
    for name in ("source", "unpacked", "empty"):
        (tmp_path / name).mkdir()
    for name in PACKAGED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "source" / name)
    sdist = build("sdist", tmp_path / "source", tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    wheel = build("wheel", source, tmp_path)

    said(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    said(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "venv/lib").glob("*/site-packages")
    # Lines of this file are searched, but editable installs in these folders are not followed.
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))

    empty, command = tmp_path / "empty", tmp_path / "venv/bin/diffusers-dp"
    where = said(
        python, "-c", "import diffusers_dp.training; print(diffusers_dp.training.__file__)", cwd=empty
    ).strip()
    assert where.startswith(str(packages))
    out = said(command, "train", "feta_pro", *SHORT, "--output_dir", "demo", cwd=empty)
    assert "Released demo/release with epsilon" in out
    assert said(python, "-m", "diffusers_dp", "verify", "demo/release", cwd=empty)
    plan = said(command, "plan", "--config", "folder_cpu", "--class_names", "a,b", "--num_train_images", "2000",
                "--no_timing", cwd=empty)  # fmt: skip
    assert "dp_sgd" in plan, "recipes are in the wheel"
    assert {path.name for path in empty.iterdir()} == {"demo"}
