# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs that an earlier version stopped go on to their end as that version did; its releases verify
(`golden/make_golden.py`).

What may be new: fields of a receipt, lines of a plan. Random in a receipt: numbers of an evaluation, hashes of
weights.
"""

import json
import re

import pytest
import torch
from golden import runs

from diffusers_dp.verify import epsilon, report
from support.places import module_of
from support.runs import BITS_OF_A_CPU


CASES = runs.cases()
RESUME = ["--resume_from_checkpoint", "latest"]
RELEASED = [name for name, case in CASES.items() if "release/privacy_receipt.json" in case["finished"]["files"]]
#: One process, and no numbers that take long.
QUICK = [name for name, case in CASES.items() if case["processes"] == 1]
#: Share of weights, or of pixels, that may differ. One whose gradient is little but rounding moves anywhere: with
#: another number of threads 4 % differ, with other draws nearly all.
MOST_APART = 0.25
#: Claims may be computed finer; everything else is equal, but for what the date, the versions and the noise say.
CLOSE = ("claimed_epsilon", "epsilon_of_all_releases")
OF_THE_DAY = ("created_utc", "versions", "library", "release_id", "files", "evaluation")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_data(tmp_path_factory.mktemp("data"))


def train(case, given, monkeypatch):
    """The exit code of its script: in this process, or in as many as the run had."""
    path = runs.script(case["method"])
    if case["processes"] > 1:
        return runs.launch(case["processes"], path, *given).returncode
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # of the test process
    return runs.exit_code(module_of(path).main, given)


def check_contained(recorded, found, at="", most=1e-12):
    """Everything that was recorded is there and equal; a field more is none too many."""
    if isinstance(recorded, dict):
        recorded = {key: value for key, value in recorded.items() if key != "truncated_batch_size"}  # it went
        assert set(recorded) <= set(found), f"{at} lacks {set(recorded) - set(found)}"
        for key, value in recorded.items():
            check_contained(value, found[key], f"{at}.{key}", 1e-6 if key in CLOSE else most)
    elif isinstance(recorded, (list, tuple)):
        assert len(recorded) == len(found), at
        for number, (value, other) in enumerate(zip(recorded, found, strict=True)):
            check_contained(value, other, f"{at}[{number}]", most)
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, rel=most, abs=most), at
    else:
        assert found == recorded, at


def check_receipt(recorded, found):
    check_contained({key: value for key, value in recorded.items() if key not in OF_THE_DAY}, found, "receipt")
    assert [file["name"] for file in found["files"]] == [file["name"] for file in recorded["files"]]
    assert len(found["evaluation"]) > 0 if recorded["evaluation"] else found["evaluation"] == []


def check_subsequence(recorded, found):
    rest = iter(found)
    assert [line for line in recorded if line not in rest] == []


def receipt_in(place):
    return json.loads((place / "run" / "release" / "privacy_receipt.json").read_text())


def recorded_receipt(name):
    return receipt_in(runs.GOLDEN / name / "finished")


@pytest.mark.parametrize("name", RELEASED)
def test_a_release_verifies(name, tmp_path, capsys):
    runs.put(name, "finished", tmp_path / "golden")
    receipt = recorded_receipt(name)
    assert report(tmp_path / "golden" / "run" / "release") == 0
    claims = receipt["claimed_epsilon"]
    own = claims[receipt["accountant"]]["epsilon"]
    assert f"numbers consistent, unsigned: epsilon {own:.4f} at delta 0.001 for one" in capsys.readouterr().out
    interval = claims["pld"]["value_discretization_interval"]
    assert epsilon(receipt, interval=interval) == pytest.approx(claims["pld"]["epsilon"], abs=1e-9)
    if "rdp" in claims:
        orders = claims["rdp"]["orders"]
        assert epsilon(receipt, orders=orders) == pytest.approx(claims["rdp"]["epsilon"], abs=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_planned_and_its_ledger_read_as_before(name, data, tmp_path):
    """Noise multipliers to the last digits: a stored answer is found again by its own."""
    case = CASES[name]
    for state in ("stopped", "finished"):
        place = tmp_path / state
        runs.put(name, state, place)
        given = runs.flags(case, place, data, RESUME)
        if state == "stopped":
            found = runs.planned(case["method"], given)
            check_contained(case["plan"]["rows"], found["rows"], "plan")
            check_subsequence(case["plan"]["table"], found["table"])
        ledger = runs.read_back(case["method"], given, min(40, case[state]["next_steps"] + 1))
        assert [[row["stage"], row["steps_reserved"]] for row in ledger["rows"]] == case[state]["rows"]
        assert ledger["next_steps"] == case[state]["next_steps"]
        check_contained(case[state]["epsilon"], ledger["epsilon"], "epsilon", 1e-9)
        path = runs.ledger_of(case, place)
        written = runs.rows_in(path) if path.exists() else []
        own = [row for row in written if row.get("release_id") == runs.identity_of(place)["release_id"]]
        facts = [{key: row[key] for key in row if key not in ("chain", "release_id")} for row in own]
        check_contained(facts, ledger["rows"], "rows")


@BITS_OF_A_CPU
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_stopped_run_goes_on_to_the_same_end(name, data, tmp_path, monkeypatch):
    """The same questions, receipt and files; and the same public draws: stored answers teach the same."""
    case, place, golden = CASES[name], tmp_path / "golden", runs.GOLDEN / name
    runs.put(name, "stopped", place)
    before = runs.rows_in(runs.ledger_of(case, place)) if runs.ledger_of(case, place).exists() else []
    given = runs.flags(case, place, data, RESUME)
    assert train(case, given, monkeypatch) == case["finished"]["exit_code"]
    assert runs.outside_private(place) == case["finished"]["files"]

    rows = runs.rows_in(runs.ledger_of(case, place))
    ends = ("chain", "release_id")
    recorded = [
        {key: row[key] for key in row if key not in ends}
        for row in runs.rows_in(runs.ledger_of(case, golden / "finished"))
    ]
    check_contained(recorded, rows, "rows")
    assert [row["chain"] for row in rows[: len(before)]] == [row["chain"] for row in before]
    identity, recorded = (runs.identity_of(path) for path in (place, golden / "finished"))
    for field in ("dataset_id", "resumes", "leaky_logs", "public_inputs", "processes"):
        assert identity[field] == recorded[field], field

    if name in RELEASED:
        check_receipt(recorded_receipt(name), receipt_in(place))
        assert report(place / "run" / "release") == 0
    check_learned(golden / "learned", place)
    if case.get("same_release"):
        check_learned(golden / "finished" / "run" / "release" / "unet", place, "release")
        check_learned(golden / "finished" / "run" / "release", place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for name, case in CASES.items() for variant in case.get("variants", ())]
)
def test_stored_answers_teach_the_same_in_another_way(name, variant, data, tmp_path, monkeypatch):
    case, place = CASES[name], tmp_path / "golden"
    runs.put(name, "stopped", place)
    given = runs.flags(case, place, data, [*RESUME, case["variants"][variant]])
    assert train(case, given, monkeypatch) == 0
    check_learned(runs.GOLDEN / name / "learned" / variant, place)


def check_learned(folder, place, name=None):
    """Models and samples in a folder of recorded ones, each under its name, against those of a run."""
    found = runs.learned(place)
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.png")]:
        recorded, arrays = runs.read_learned(path), found[name or path.stem]
        if path.suffix == ".png":  # names of the classes stand left of the images since
            arrays = {"pixels": arrays["pixels"][:, -recorded["pixels"].shape[1] :]}
        apart = runs.share_apart(recorded, arrays)
        assert apart <= MOST_APART, f"{apart:.0%} of {path.name} differ: public draws changed"


def test_it_is_noticed_when_another_seed_is_drawn(data, tmp_path, monkeypatch):
    """The comparison of weights tells seeds apart."""
    name = "dpdm_last_step"
    place = tmp_path / "golden"
    runs.put(name, "stopped", place)
    given = runs.flags(CASES[name], place, data, [*RESUME, "--seed", "1"])
    assert train(CASES[name], given, monkeypatch) == 0
    with pytest.raises(AssertionError, match="public draws changed"):
        check_learned(runs.GOLDEN / name / "finished" / "run" / "release", place)


def test_no_path_of_a_machine_is_kept():
    absolute = re.compile(rb"[\"' ]/(tmp|home|root|work|usr|var|Users|private)/")
    kept = [path for path in runs.GOLDEN.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert [path for path in kept if absolute.search(path.read_bytes())] == []
    assert {runs.identity_of(path)["ledger"] for path in runs.GOLDEN.glob("*/*/") if (path / "run").exists()} == {
        "{ledger}"
    }
