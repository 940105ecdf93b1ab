# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Fixtures of several test files: the training script, and a release that was made honestly."""

import gc
import os
import random
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusers_dp.audit import checks
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.privacy.kept_state import KeptState
from diffusers_dp.privacy.sensitive import SensitiveImages
from support.evaluating import NAMES
from support.flags import FOLDER
from support.hub_stand_in import hub  # noqa: F401 (a fixture)
from support.images import write_dataset
from support.page_visits import chromium  # noqa: F401 (a fixture)
from support.releases import make_release
from support.remembered import remember_accounting
from support.runs import load, write_images


remember_accounting()
os.fsync = lambda descriptor: None  # tests of what is synced, and of what cannot be, have their own
checks.RECORDS_PER_STEP = 120  # enough to tell noise from half of it

# They take most of the time, and begin: a worker that had one of them at the end would let the others wait.
LONGEST = (
    "app_browser app_layout processes crash train_feta_pro verify recipes planning audit_mechanism accounting "
    "train_dp_ldm train_methods evaluate_options image_cache evaluate audit_run plan preflight worker_pool sample"
).split()
PLACES = {f"test_{name}": place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: PLACES.get(item.path.stem, len(PLACES)))


def pytest_collection_finish():
    gc.freeze()  # a million objects of what was imported, which no collection of garbage need look at again
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def entropy_of_this_test(request, monkeypatch):
    """A stream of the test's name in the place of the operating system's entropy, in this process.

    The suite asks some hundred queries that an honest program fails with a probability of 1e-5 or 1e-4 each. A test
    that is red once in a hundred runs teaches people to run it again; with its own draws it is red or green for good.
    """
    stream = np.random.default_rng(zlib.crc32(request.node.nodeid.encode())).bytes
    monkeypatch.setattr(os, "urandom", stream)
    monkeypatch.setattr(random, "_urandom", stream)  # of `secrets`, and so of numpy's unseeded generators


@pytest.fixture(autouse=True)
def same_threads():
    """A command in this process takes every core; the tests after it would wait for them."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_wish_to_stop(monkeypatch):
    """A test may send its own process SIGTERM; the tests after it go on."""
    monkeypatch.setattr("diffusers_dp.distributed.interruption._requested", False)


@pytest.fixture(autouse=True)
def quick_forecast(monkeypatch):
    """One call of each step says how long a run takes; `test_forecast.py` has the others."""
    monkeypatch.setattr("diffusers_dp.runs.forecast.LONG_ENOUGH", 0.0)


@pytest.fixture
def untrained_judge(monkeypatch):
    """A classifier of random weights answers the query about a finished model; to train it takes most of a minute."""
    untrained = "diffusers_dp.evaluation.charged.Judge._train"
    monkeypatch.setattr(untrained, lambda judge, train, validation: judge.classifier.prepare(train))


@pytest.fixture
def watching(monkeypatch):
    """Losses, features and encoders of this test note what they are shown. A door would refuse that, and show losses
    public noise first."""
    monkeypatch.setattr(KeptState, "changed", lambda self: None)
    monkeypatch.setattr(SensitiveImages, "_state_of", lambda self, *pair: KeptState())


@pytest.fixture
def script(request, monkeypatch):
    """The script of the file's `METHOD` as a module; it leaves the threads of the test process alone."""
    return load(getattr(request.module, "METHOD", "feta_pro"), monkeypatch)


@pytest.fixture
def flags(request, tmp_path):
    """A run of the file's `FLAGS` on images in folders."""
    return [*request.module.FLAGS, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]


@pytest.fixture
def folder_flags(tmp_path):
    return [*FOLDER, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]


@pytest.fixture(scope="session")
def judged_data(tmp_path_factory):
    """Real digits 0 to 2 as a data set, and others of them in the place of synthetic images."""
    folder = tmp_path_factory.mktemp("data")
    images, labels = load_digits_split(train=True)
    images, labels = images[labels < 3], labels[labels < 3]
    write_dataset(folder / "real", images[:200], labels[:200], NAMES)
    write_dataset(folder / "real", images[200:260], labels[200:260], NAMES, split="test")
    write_dataset(folder / "synthetic", images[300:380], labels[300:380], NAMES)
    return folder


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("run"))


@pytest.fixture
def release(honest, tmp_path):
    """A copy to tamper with."""
    return Path(shutil.copytree(honest, tmp_path / "release"))
