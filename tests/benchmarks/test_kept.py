# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts that stay in the repository fit to their rows, and a changed one is seen."""

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
    receipts = kept.folders(RESULTS / "receipts")
    found = [kept.digest_of(folder / kept.RECEIPT) for folder in receipts]
    assert receipts and set(found) <= known
    assert [folder.name for folder in receipts] == [digest[:12] for digest in found]


@pytest.mark.slow
def test_all_that_is_kept_is_recomputed(kept):
    assert list(kept.check_kept(ROWS, RESULTS)) == []


@pytest.mark.parametrize("method", ["moments", "dp_gan"])
def test_a_kept_receipt_is_recomputed_and_a_changed_one_is_seen(kept, tmp_path, method):
    row = next(row for row in ROWS if row["method"] == method and receipt_of(kept, row).exists())
    file = receipt_of(kept, row, tmp_path)
    file.parent.mkdir(parents=True)
    shutil.copyfile(receipt_of(kept, row), file)
    assert list(kept.check_kept([row, {**row, "seed": 1}], tmp_path)) == []
    for change in ({"epsilon_spent": row["epsilon_spent"] - 0.01}, {"epsilon": row["epsilon"] / 2}, {"delta": 1e-9},
                   {"status": "unproven"}):  # fmt: skip
        assert list(kept.check_kept([row, {**row, **change}], tmp_path)), change
    assert list(kept.check_kept([], tmp_path)) == [f"{file.parent.name}: It is the receipt of no row."]
    on_board = {**row, "case": "board Another", "receipt_sha256": "0" * 64}
    assert "board Another: its receipt is not kept." in list(kept.check_kept([row, on_board], tmp_path))
    text = file.read_text(encoding="utf-8")
    receipt = json.loads(text)
    receipt["events"][-1]["noise_multiplier"] /= 1.1
    for changed in (json.dumps(receipt), text.replace("{", '{"delta": 1e-9,', 1), "[]"):
        file.write_text(changed, encoding="utf-8")
        assert list(kept.check_kept([{**row, "receipt_sha256": kept.digest_of(file)}], tmp_path)), changed[:40]


def receipt_of(kept, row, results=RESULTS):
    return kept.folder_of(row.get("receipt_sha256", "none"), results) / kept.RECEIPT


def test_a_picture_has_an_image_of_each_class(kept, tmp_path):
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 4, 4), np.uint8)
    found = kept.first_of_classes(images, np.array([2, 0, 2, 1, 0, 1]))
    assert found.shape == (3, 4, 4, 3) and found[:, 0, 0, 0].tolist() == [1, 3, 0]
    assert kept.first_of_classes(images, None).shape == (6, 4, 4, 3), "without classes"
    kept.draw_methods({"epsilon 10": {"a": found, "b": found[:1]}, "epsilon 1": {"a": found}}, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
