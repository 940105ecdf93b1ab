# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What is private can be read by its owner alone, whatever the umask is; what is public has the modes that the user's
umask gives."""

import os
import stat
import subprocess
import sys

import datasets
import numpy as np
import pytest

from diffusers_dp.files.file_modes import private_files, public_files
from diffusers_dp.files.output_files import write_json
from support.few import few
from support.flags import FOLDER
from support.latent_releases import latent_release
from support.latents import stable_diffusion


@pytest.fixture(params=[0, 0o022, 0o027], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    assert os.umask(before) == request.param, "it is given back"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def readable_by_others(folder):
    return [str(path.relative_to(folder)) for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]


def test_whoever_writes(tmp_path, umask):
    """This process, another library, and a process that is started here."""
    with private_files():
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").touch()
        subprocess.run([sys.executable, "-c", "open('child', 'w')"], cwd=tmp_path, check=True)
        with private_files(), public_files():
            (tmp_path / "public").touch()
        (tmp_path / "after").touch()
    with public_files():
        (tmp_path / "outside").touch()
    found = {path.name: mode(path) for path in tmp_path.rglob("*")}
    ordinary = 0o666 & ~umask
    assert found == {
        "folder": 0o700, "file": 0o600, "child": 0o600, "after": 0o600, "public": ordinary, "outside": ordinary,
    }  # fmt: skip


def test_an_error_gives_the_umask_back(umask):
    for manager in (private_files, public_files):
        with private_files(), pytest.raises(KeyboardInterrupt), manager():
            raise KeyboardInterrupt


def test_results_beside_a_run(tmp_path, umask):
    write_json({}, tmp_path / "run" / "private" / "audit.json")
    assert mode(tmp_path / "run") == 0o777 & ~umask and readable_by_others(tmp_path / "run" / "private") == []


def data_set(folder):
    """With a cache of its own in `private/`."""
    rng = np.random.default_rng(0)
    images = [{"image": rng.integers(0, 256, (8, 8), dtype=np.uint8), "label": number % 3} for number in range(30)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["left", "empty", "right"])}
    )
    folder.mkdir()
    datasets.Dataset.from_list(images, features=features).to_parquet(folder / "train-0.parquet")
    return ["--dataset_name", str(folder)]


@pytest.mark.parametrize("umask", few([0, 0o022]), ids=oct, indirect=True)
def test_all_that_a_run_writes(script, tmp_path, umask, monkeypatch):
    """Every kind of file: caches, answers, checkpoints, unfinished models, and the shared ledger."""
    monkeypatch.setattr("diffusers_dp.data.images.PARTS_OF_A_PROCESS", 0.001)  # others decode, too
    monkeypatch.setattr("diffusers_dp.data.images.cores", lambda: 2)
    run, ledgers = tmp_path / "runs" / "one", tmp_path / "ledgers"
    script.main([
        *FOLDER, *data_set(tmp_path / "images"), "--output_dir", str(run), "--dataset_id", "scans", "--ledger_dir",
        str(ledgers),
    ])  # fmt: skip
    private = run / "private"
    there = {path.relative_to(private).parts[0] for path in private.rglob("*") if path.is_file()}
    assert there >= {
        "answers",
        "cache",
        "checkpoint-2",
        "lock",
        "run.json",
        "status.json",
    }
    assert readable_by_others(private) == readable_by_others(ledgers) == []
    assert {mode(path) for path in (run / "release").rglob("*") if path.is_file()} == {0o666 & ~umask}
    assert {mode(path) for path in (run.parent, run, run / "release", run / "release" / "unet")} == {0o777 & ~umask}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return stable_diffusion(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("umask", [0, 0o022, 0o077], ids=oct, indirect=True)
@pytest.mark.parametrize("merge", [True, False])
def test_the_weights_of_a_release_follow_the_umask(tmp_path, umask, merge, base):
    """safetensors writes files that only their owner can read, and a temporary folder is one."""
    with private_files():
        release = latent_release(tmp_path / "run", base, merge)
    inside = list(release.rglob("*"))
    assert {mode(path) for path in inside if path.is_file()} == {0o666 & ~umask}
    assert {mode(path) for path in (release, *inside) if path.is_dir()} == {0o777 & ~umask}
