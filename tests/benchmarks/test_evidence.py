# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`evidence.json` and the table of the check are those of the rows."""

import json
from importlib import import_module

import pytest

from support.places import ROOT


@pytest.fixture
def evidence(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("evidence")


@pytest.fixture
def rows():
    return [json.loads(line) for line in (ROOT / "benchmarks/results/rows.jsonl").read_text().splitlines()]


def test_the_evidence_of_the_package_is_made_of_the_rows(evidence, rows):
    assert evidence.text_of(rows) == evidence.FILE.read_text(), "run `python benchmarks/rows.py docs`"
    texts = [path.read_text(encoding="utf-8") for path in evidence.TEXTS]
    assert [evidence.with_check(text, rows) for text in texts] == texts
    assert sum(text.count("<!-- choice -->") for text in texts) == 1


def test_seeds_are_one_row_and_flags_of_data_are_left_out(evidence):
    real = {"case": "real images", "method": None, "data": "mnist", "scored_on": "test", "accuracy": {"cnn": 0.9}}
    row = {"case": "PE", "method": "pe", "recipe": "folder_cpu", "data": "mnist_90", "epsilon": 1.0,
           "flags": "--num_train_images 90 --class_names a,b --num_channels 1 --resolution 8 --num_votes 2 "
           "--embedding_network {net} --embedding network",
           "scored_on": "test", "accuracy": {"cnn": 0.5}, "minutes": {"train": 1.0, "score": 9.0}}  # fmt: skip
    # Another seed, whose judge's labels teach more than those that were drawn.
    taught, minutes = {"cnn": 0.7}, {"train": 2.0, "draw": 1.0}
    other = {**row, "accuracy": {"cnn": 0.4}, "accuracy_on_soft_labels": taught, "minutes": minutes}
    measured = [real, row, other, {**row, "scored_on": "train"}, {**row, "data": "unknown"}]
    assert evidence.evidence_of(measured) == [], "one signal says nothing of others"
    measured.append({**row, "epsilon": row["epsilon"] / 2})
    assert evidence.evidence_of(measured) == [], "and one method nothing of a choice"
    flags = "--num_train_images 90 --class_names a,b --num_channels 1 --resolution 8"
    measured.append({**row, "case": "Moments", "method": "moments", "flags": flags})
    _, found, _ = evidence.evidence_of(measured)
    assert (found.seeds, found.accuracy, found.accuracy_of_real, found.minutes) == (2, 0.6, 0.9, 2.0)
    assert found.flags == ("--num_votes", "2", "--embedding", "network")
    assert found.needs == ("embedding_network", "public_dataset_name")
    assert (found.num_units, found.num_classes, found.image_shape) == (90, 2, (1, 8, 8))


def test_the_rule_finds_the_best_of_rows_that_it_does_not_know(evidence, rows):
    """In at least five of six groups (data set and epsilon), its first choice is the best or within two points."""
    groups = list(evidence.left_out(evidence.evidence_of(rows)))
    good = [each for each in groups if each.loss <= 0.02]
    assert len(groups) >= 6 and len(good) >= 5 / 6 * len(groups), [each for each in groups if each not in good]
