# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts and releases that stay in the repository fit to their rows, and a changed one is seen."""

import json
import shutil
from importlib import import_module

import numpy as np
import pytest

from support.places import ROOT


RESULTS = ROOT / "benchmarks" / "results"
ROWS = [json.loads(line) for line in (RESULTS / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("kept")


def test_each_kept_receipt_is_that_of_a_row(kept):
    known = {row.get("receipt_sha256") for row in ROWS}
    files = sorted((RESULTS / "receipts").glob("*.json"))
    assert files and {kept.digest_of(file) for file in files} <= known
    assert all(file.stem == kept.digest_of(file)[:12] for file in files)
    releases = sorted((RESULTS / "releases").glob("*/"))
    assert {kept.digest_of(folder / kept.RECEIPT) for folder in releases} <= known


@pytest.mark.parametrize("method", ["moments", "dp_gan"])
def test_a_kept_receipt_is_recomputed_and_a_changed_one_is_seen(kept, tmp_path, method):
    row = next(row for row in ROWS if row["method"] == method and receipt_of(row).exists())
    file = tmp_path / "receipts" / receipt_of(row).name
    file.parent.mkdir()
    shutil.copyfile(receipt_of(row), file)
    assert list(kept.check_kept([row], tmp_path)) == []
    assert list(kept.check_kept([{**row, "epsilon_spent": row["epsilon_spent"] - 0.01}], tmp_path))
    assert list(kept.check_kept([], tmp_path)) == [f"{file.name} is the receipt of no row."]
    receipt = json.loads(file.read_text(encoding="utf-8"))
    receipt["events"][-1]["noise_multiplier"] *= 1.1
    file.write_text(json.dumps(receipt), encoding="utf-8")
    assert list(kept.check_kept([{**row, "receipt_sha256": kept.digest_of(file)}], tmp_path))


def receipt_of(row):
    return RESULTS / "receipts" / f"{row.get('receipt_sha256', 'none')[:12]}.json"


def test_only_small_releases_are_kept(kept, tmp_path, monkeypatch):
    release = tmp_path / "release" / "data"
    release.mkdir(parents=True)
    (release / "shard").write_bytes(b"1234")
    kept.keep_release(release.parent, "small", tmp_path)
    monkeypatch.setattr(kept, "MOST_BYTES", 3)
    kept.keep_release(release.parent, "large", tmp_path)
    assert [path.name for path in tmp_path.glob("releases/*")] == ["small"]
    assert list(kept.check_kept([], tmp_path)) == ["small is the release of no row."]


def test_a_picture_has_an_image_of_each_class(kept, tmp_path):
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 4, 4), np.uint8)
    found = kept.first_of_classes(images, np.array([2, 0, 2, 1, 0, 1]))
    assert found.shape == (3, 4, 4, 3) and found[:, 0, 0, 0].tolist() == [1, 3, 0]
    assert kept.first_of_classes(images, None).shape == (6, 4, 4, 3), "without classes"
    kept.draw_methods({"epsilon 10": {"a": found, "b": found[:1]}, "epsilon 1": {"a": found}}, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
