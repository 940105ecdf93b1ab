# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts that stay in the repository fit to their rows, and a changed one is seen."""

import json
import shutil
from importlib import import_module

import datasets
import numpy as np
import PIL.Image
import pytest

from diffusers_dp.verify import verify
from support.few import few
from support.places import ROOT
from support.releases import make_release


RESULTS = ROOT / "benchmarks" / "results"
ROWS, EXAMPLES = (
    [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    for name in ("rows", "examples")
)


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("kept")


def test_the_releases_among_the_examples_are_those_of_rows(kept):
    """Whole, verified, and by their receipts."""
    receipts = {row["receipt_sha256"] for row in EXAMPLES}
    for release in kept.folders(RESULTS / "releases"):
        assert verify(release)[1] == [] and kept.digest_of(release / "privacy_receipt.json") in receipts


@pytest.mark.parametrize("whose", few(["one of each method", "all"]))
def test_the_receipts_of_the_repository_are_recomputed(whose, kept, tmp_path):
    """Each is that of a row; rows whose receipts had an earlier format keep its digest and epsilon."""
    receipts = {folder.name for folder in kept.folders(RESULTS / "receipts")}
    rows, results = [*ROWS, *EXAMPLES], RESULTS
    if whose != "all":
        first = {
            row["method"]: row["receipt_sha256"] for row in rows if row.get("receipt_sha256", "")[:12] in receipts
        }
        rows, results = [row for row in rows if row.get("receipt_sha256") in first.values()], tmp_path
        for digest in first.values():
            shutil.copytree(RESULTS / "receipts" / digest[:12], results / "receipts" / digest[:12])
        assert len(first) >= 8
    assert list(kept.check_kept(rows, results)) == []
    assert all(
        row["receipt_sha256"][:12] in receipts or row["receipt"] == kept.EARLIER
        for row in ROWS
        if row["case"].startswith("board ")
    )


def test_a_kept_receipt_is_recomputed_and_a_changed_one_is_seen(kept, tmp_path):
    release = make_release(tmp_path / "run")
    receipt, digest = json.loads((release / kept.RECEIPT).read_text()), kept.digest_of(release / kept.RECEIPT)
    row = {"case": "board A", "receipt_sha256": digest, "epsilon": 10.0, "delta": receipt["delta"],
           "epsilon_spent": receipt["claimed_epsilon"]["rdp"]["epsilon"], "status": receipt["status"]}  # fmt: skip
    kept.keep_receipt(release, tmp_path)
    file = kept.folder_of(digest, tmp_path) / kept.RECEIPT
    assert list(kept.check_kept([row, {**row, "seed": 1}], tmp_path)) == []
    for change in ({"epsilon_spent": 1.0}, {"epsilon": row["epsilon_spent"] / 2}, {"delta": 1e-9},
                   {"status": "unproven"}):  # fmt: skip
        assert list(kept.check_kept([row, {**row, **change}], tmp_path)), change
    assert list(kept.check_kept([], tmp_path)) == [f"{file.parent.name}: It is the receipt of no row."]
    on_board = {**row, "case": "board Another", "receipt_sha256": "0" * 64}
    assert "board Another: its receipt is not kept." in list(kept.check_kept([row, on_board], tmp_path))
    assert list(kept.check_kept([row, {**on_board, "receipt": kept.EARLIER}], tmp_path)) == []
    text = file.read_text(encoding="utf-8")
    receipt = json.loads(text)
    receipt["events"][-1]["noise_multiplier"] /= 1.1
    for changed in (json.dumps(receipt), text.replace("{", '{"delta": 1e-9,', 1), "[]"):
        file.write_text(changed, encoding="utf-8")
        assert list(kept.check_kept([{**row, "receipt_sha256": kept.digest_of(file)}], tmp_path)), changed[:40]


def test_one_image_of_each_class_is_kept_for_the_pictures(kept, tmp_path):
    """Of a release and of real images, once: other draws of a release change nothing."""
    release, place = make_release(tmp_path / "run"), tmp_path / "set" / "data"
    place.mkdir(parents=True)
    columns = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    for split, levels in (("train", [30, 10, 20]), ("test", [60, 40, 50])):
        images = [PIL.Image.fromarray(np.full((8, 8), level, np.uint8)) for level in levels]
        rows = datasets.Dataset.from_dict({"image": images, "label": [1, 0, 0]}, features=columns)
        rows.to_parquet(place / f"{split}-00000-of-00001.parquet")
    results = tmp_path / "new" / "results"
    for _ in range(2):
        kept.keep_some_images(release, place.parent, "mine", place.parent, results)
        (place / "train-00000-of-00001.parquet").unlink(missing_ok=True)
    digest = kept.digest_of(release / kept.RECEIPT)
    for file, wanted in ((kept.images_of(digest, results), [10, 30]), (results / "images" / "mine.png", [40, 60])):
        with PIL.Image.open(file) as line:
            assert (line.mode, line.size) == ("L", (16, 8)) and np.asarray(line)[0, ::8].tolist() == wanted
    kept.draw_methods({"epsilon 1": {"real images": file}}, tmp_path / "all.png", shows="rows")
    with PIL.Image.open(tmp_path / "all.png") as picture:
        assert picture.text["Description"] == "rows"
