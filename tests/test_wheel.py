# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `pip install` gives is enough to train."""

import sys
import tarfile

import pytest

from support.wheel import build, said, source_in


SHORT = (
    "--max_train_steps 1 --spatial_steps 1 --frequency_steps 1 --generator_steps 1 --expert generator_batch_size=10 "
    "--expert num_auxiliary_images=20 --noise_multiplicity 1 --train_batch_size 100 --num_inference_steps 2 "
    "--skip_preflight "
    "--block_out_channels 4,8 --num_frequency_features 50 --expert generator_channels=4 --accountant rdp"
).split()


@pytest.mark.slow
def test_a_wheel_made_of_the_sdist_trains_in_an_empty_folder(tmp_path):
    """With the dependencies that are installed here: they are not downloaded anew."""
    pytest.importorskip("pip")
    for name in ("unpacked", "empty"):
        (tmp_path / name).mkdir()
    sdist = build("sdist", source_in(tmp_path / "source"), tmp_path)
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
    assert "DP-SGD" in plan, "recipes are in the wheel"
    ranked = said(command, "recommend", "--class_names", "a,b", "--num_train_images", "2000", cwd=empty)
    assert "minutes of one core  row" in ranked, "the evidence is in the wheel"
    assert "--server_port" in said(command, "app", "--help", cwd=empty)
    assert {path.name for path in empty.iterdir()} == {"demo"}
