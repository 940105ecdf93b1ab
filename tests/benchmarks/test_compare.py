# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`benchmarks/compare.py`: pairs by seed, standard errors, plain sentences, a picture."""

import json
import math
from importlib import import_module

import pytest

from support.places import ROOT


def row(case, seed, accuracy, frechet, **changes):
    shared = {"data": "mnist", "epsilon": 1.0, "num_drawn": 5000, "scored_on": "test", "precision": 0.5}
    return {"case": case, "seed": seed, "accuracy": {"cnn": accuracy}, "frechet": frechet, **shared, "recall": 0.5,
            "fld": 1.0, **changes}  # fmt: skip


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def rows(tmp_path):
    """B is worse in accuracy by 1, 2 and 3 points, and has no common epsilon in one more row."""
    file = tmp_path / "rows.jsonl"
    made = [row("a", seed, 0.9 + seed / 100, 0.1) for seed in range(3)]
    made += [row("b", seed, 0.89, 0.3 + seed / 10) for seed in range(3)] + [row("b", 0, 0.1, 9.0, epsilon=10.0)]
    file.write_text("".join(json.dumps(each) + "\n" for each in made))
    return file


def compare(capsys, *argv):
    code = 0
    try:
        import_module("compare").main([*map(str, argv)])
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    return code, said.out + said.err


def test_rows_are_paired_by_seed(rows, tmp_path, capsys):
    picture = tmp_path / "difference.png"
    code, said = compare(capsys, f"{rows}:a", f"{rows}:b", "--picture", picture)
    assert code == 0
    line = next(line for line in said.splitlines() if line.startswith("accuracy cnn"))
    assert line.split()[2:] == ["0.91", "0.89", "+0.02", f"{0.01 / math.sqrt(3):.4g}", "3"]
    assert "accuracy cnn: A is better than B by 0.02 (s.e. 0.0058)." in said
    assert "frechet: A is better than B by 0.3" in said, "lower is better"
    assert "precision: no difference beyond 2 standard errors" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_reports_of_two_runs(tmp_path, capsys):
    for name, value in (("a", 91.0), ("b", 95.0)):
        folder = tmp_path / name / "private" / "unprotected" / "evaluation"
        folder.mkdir(parents=True)
        measured = [{"metric": "accuracy", "value": value, "standard_error": 1.0,
                     "protocol": {"classifier": "cnn", "num_train": 5000}}]  # fmt: skip
        (folder / "report.json").write_text(json.dumps({"measurements": measured}))
    (tmp_path / "a" / "release").mkdir()
    code, said = compare(capsys, tmp_path / "a" / "release", tmp_path / "b")
    assert code == 0 and "accuracy cnn 5000: A is " in said and "by 4 (s.e. 1.4)" in said
