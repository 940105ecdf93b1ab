# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every figure of the docs names its row; the rule is in `benchmarks/figures.py`."""

import json
import sys

import pytest
import yaml

from support.places import ROOT, module_of


sys.path.insert(0, str(ROOT / "benchmarks"))  # its neighbour is imported from there
figures = module_of(ROOT / "benchmarks" / "figures.py")
sys.path.pop(0)
KNOWN = {"measured_before.jsonl": {"psg, trials"}, "quality_cpu.jsonl": {"ac6f8c498ab6"}}
TABLE = "| epsilon | accuracy |\n|---|---|\n| 10 | 87.3 |"
ROW = {"case": "PSG", "data": "mnist", "epsilon": 10.0, "num_drawn": 500, "flags": "", "draw": "", "seed": 0,
       "scored_on": "test", "frechet": 0.01, "precision": 0.5, "recall": 0.4, "minutes": {"train": 12.0},
       "accuracy": dict.fromkeys(("cnn", "mlp", "logreg"), 0.873)}  # fmt: skip


@pytest.mark.parametrize("path", figures.TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_figure_of_the_docs_names_its_row(path):
    text = path.read_text(encoding="utf-8")
    assert figures.without_row(text, figures.known_names()) == []


@pytest.mark.parametrize("path", figures.TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_of_the_docs_are_those_of_the_rows(path):
    text = path.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (figures.RESULTS / "rows.jsonl").read_text().splitlines()]
    cases = {row["case"] for row in rows} | {
        case["name"]
        for file in ("cases.yaml", "board.yaml")
        for case in yaml.safe_load((ROOT / "benchmarks" / file).read_text())
    }
    assert figures.cases_of(text) <= cases
    assert figures.written(text, rows) == text, "run `python benchmarks/rows.py docs`"
    assert text.count("<!-- rows: ") == text.count("<!-- /rows -->") == len(figures.BLOCK.findall(text))


@pytest.mark.parametrize(
    "planted",
    [
        "The recipe reaches 87.3 % on three seeds.", "Its Fréchet distance is 4.4.", TABLE,
        "Accuracy in per cent:\n\n| epsilon | seed 0 |\n|---|---|\n| 10 | 87.3 |",
        "The published network reaches 80.9 %; we measured 87.3 %.", "As published, it reached 45.8 %.",
        "The recipe reaches 87.3 % ([row](../benchmarks/results/measured_before.jsonl#no-such-row)).",
        "The recipe reaches 87.3 % ([row](../benchmarks/results/no_such_file.jsonl#psg-trials)).",
        "The recipe reaches 87.3 % (`rows: measured_before.jsonl psg, trials`).",
        f"[row](../benchmarks/results/measured_before.jsonl#psg-trials)\n\nText.\n\n{TABLE}",
    ],
)  # fmt: skip
def test_a_figure_without_a_row_is_found(planted):
    text = f"# Title\n\nNo figure here.\n\n{planted}\n\nNone here: it takes 12.5 minutes, 3 % less than before.\n"
    assert len(figures.without_row(text, KNOWN)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "The recipe reaches 87.3 % ([row](../benchmarks/results/measured_before.jsonl#psg-trials)).",
        f"By seed ([row](../benchmarks/results/quality_cpu.jsonl#ac6f8c498ab6)):\n\n{TABLE}",
        f"{TABLE}\n\nThese are [row](../benchmarks/results/quality_cpu.jsonl#ac6f8c498ab6).",
        f"<!-- rows: PSG -->\n\n{TABLE}\n\n<!-- /rows -->",
        "It publishes an accuracy of 95.6 %.", f"Published, **not measured** here:\n\n{TABLE}",
        "```\naccuracy 87.3 %\n```", "Accuracy with `--expert p_mean=0.8` [here](a_0.8.md).",
        "A step takes 0.64 % of the time.",
    ],
)  # fmt: skip
def test_a_figure_with_a_row_passes(text):
    assert figures.without_row(text, KNOWN) == []


def test_a_block_is_made_from_its_rows_and_a_stale_one_is_seen():
    text = "before\n<!-- rows: PSG, PE -->\nold\n<!-- /rows -->\nafter [row](../benchmarks/results/a.jsonl#b)\n"
    made = figures.written(text, [ROW, {**ROW, "case": "DPDM"}, {**ROW, "scored_on": "train"}])
    assert made.startswith("before\n<!-- rows: PSG, PE -->\n\n| case |") and made.endswith(
        "[row](../benchmarks/results/a.jsonl#b)\n"
    )
    assert made.count("87.30") == 1 and "No row yet: PE." in made and "DPDM" not in made
    assert figures.written(made, [ROW]) == made != figures.written(made, [{**ROW, "frechet": 0.02}])
    assert figures.cases_of(made) == {"PSG", "PE"}
