# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run folder says of its run is never made anew in silence, nor is a ledger that a run has lost."""

import json
from dataclasses import asdict, replace

import pytest

from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import IntegrityError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.runs.folder import RunIdentity, read_identity, save_identity
from diffusers_dp.runs.run_ledger import new_ledger
from support.flags import RESUME
from support.runs import PowerCut, cut_power_at


TRACES = ["answers/central_images/state.json", "checkpoint-2/state.json"]


def leave(private, trace):
    (private / trace).parent.mkdir(parents=True)
    (private / trace).write_text("{}")


@pytest.mark.parametrize("dataset_id", [None, "scans"])
@pytest.mark.parametrize("trace", [*TRACES, "ledger.jsonl"])
def test_a_run_that_has_begun_is_not_taken_for_a_new_one(tmp_path, trace, dataset_id):
    private = tmp_path / "private"
    ledger = (private if dataset_id is None else tmp_path / "ledgers") / f"{dataset_id or 'ledger'}.jsonl"
    trace = str(ledger.relative_to(tmp_path)) if trace == "ledger.jsonl" else f"private/{trace}"
    leave(tmp_path, trace)
    if "ledgers" in trace:  # of other releases: it says nothing of this run
        assert not read_identity(private, dataset_id, ledger).asked
        return
    with pytest.raises(IntegrityError, match="run.json is missing, but .* shows that the run has begun: restore"):
        read_identity(private, dataset_id, ledger)


@pytest.mark.parametrize("trace", [None, *TRACES])
def test_a_ledger_that_is_gone_is_missed(tmp_path, trace):
    ledger = tmp_path / "ledger.jsonl"
    save_identity(tmp_path, RunIdentity(ledger=str(ledger), asked=trace is None))
    if trace is not None:
        leave(tmp_path, trace)
    with pytest.raises(IntegrityError, match="ledger.jsonl is missing, but the run has asked"):
        read_identity(tmp_path, None, ledger)


@pytest.mark.parametrize("stated", [{}, {"format": "diffusers_dp/2"}, {"format": 1}])
def test_a_run_of_another_format_is_refused_by_name(tmp_path, stated):
    facts = asdict(RunIdentity(ledger=str(tmp_path / "ledger.jsonl"), resumes=[2], processes=[1, 1]))
    (tmp_path / "run.json").write_text(json.dumps({**facts, **stated}))
    with pytest.raises(IntegrityError, match='run.json does not state "format": "diffusers_dp/1": continue with'):
        read_identity(tmp_path, None, tmp_path / "ledger.jsonl")


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "null", "7", "{", '{"x": 1}', '{"resumes": 5}', '{"resumes": ["2"]}', '{"resumes": [true]}',
        '{"listing": 3}', '{"processes": null}', '{"public_inputs": [1]}', '{"dataset_id": 3}',
        '{"ledger": null}', '{"asked": 0}', "\udcff", "[" * 100_000, None,
    ],
)  # fmt: skip
def test_a_damaged_identity_is_one_sentence(tmp_path, content):
    if content is None:
        (tmp_path / "run.json").mkdir()
    else:
        (tmp_path / "run.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(IntegrityError, match="run.json is damaged: restore the file"):
        read_identity(tmp_path, None, tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("lost", ["run.json", "ledger.jsonl"])
def test_a_run_whose_books_are_gone_spends_nothing(script, folder_flags, tmp_path, monkeypatch, lost):  # noqa: F811
    """It was killed in its first step, before there was an answer or a checkpoint."""
    private = tmp_path / "run" / "private"
    flags = [*folder_flags, "--curriculum", "none"]
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        cut_power_at(patch, script, 1)
        script.main(flags)
    assert not list(private.glob("checkpoint-*"))
    (private / lost).unlink()
    before = {path: path.read_bytes() for path in private.rglob("*") if path.is_file()}
    with pytest.raises(IntegrityError, match=f"{lost} is missing") as refusal:
        script.main([*folder_flags, "--curriculum", "none", *RESUME])
    assert refusal.value.exit_code == 4
    assert {path: path.read_bytes() for path in private.rglob("*") if path.is_file()} == before


def test_rows_that_a_backup_of_a_shared_ledger_lacks(tmp_path):
    """The ledger of the data set is there, and has forgotten this release."""
    path, private = tmp_path / "ledgers" / "scans.jsonl", tmp_path / "run" / "private"
    config = FETAProConfig(
        output_dir=str(tmp_path / "run"), dataset_id="scans", ledger_dir=str(path.parent), target_delta=1e-3
    )
    facts = PublicFacts(30, (1, 8, 8), None)
    row = LedgerRow("central_images", sampled(1.0, 20.0))

    def opened(private):
        private.mkdir(parents=True, exist_ok=True)
        identity = read_identity(private, "scans", path)
        ledger = new_ledger(path, replace(config, output_dir=str(private.parent)), facts, identity)
        save_identity(private, identity)
        return ledger

    ledger = opened(tmp_path / "earlier" / "private")
    ledger.reserve(row)
    ledger.close()
    backup = path.read_bytes()
    opened(private).close()
    ledger = opened(private)  # it was killed before its first query, and goes on
    ledger.reserve(row)
    ledger.close()
    opened(private).close()
    path.write_bytes(backup)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="holds no row of this run, which has asked the images"):
            opened(private)
