# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger's file: synced before anything is granted, whole after a crash, refused when damaged."""

import json
import os
import stat
from pathlib import Path

import pytest

from diffusers_dp.errors import IntegrityError
from diffusers_dp.files.journal import Journal
from support.ledgers import independent_epsilon, lines, on_disk, row


class Syncs:
    """Records what is on disk at every fsync: the whole file, or that it was a directory."""

    def __init__(self, monkeypatch):
        self.seen = []
        self.real = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.seen.append("directory")
        else:
            self.seen.append(Path(f"/proc/self/fd/{descriptor}").read_text())
        self.real(descriptor)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_row_is_synced_before_it_is_granted(tmp_path, monkeypatch):
    ledger = on_disk(tmp_path)
    syncs = Syncs(monkeypatch)
    for number in range(3):
        syncs.seen.clear()
        assert ledger.reserve(row(30.0, name=f"query_{number}")) == number
        content, directory = syncs.seen
        assert content == ledger.path.read_text() and f"query_{number}" in content and directory == "directory"
    syncs.seen.clear()
    ledger.executed(1, 1)
    content, directory = syncs.seen
    assert content == ledger.path.read_text() and directory == "directory"
    assert list(ledger.path.parent.iterdir()) == [ledger.path]


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("failing", ["file", "directory"])
def test_a_failing_sync_grants_nothing(tmp_path, monkeypatch, earlier, failing):
    ledger = on_disk(tmp_path)
    for _ in range(earlier):
        ledger.reserve(row(30.0))
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == (failing == "directory"):
            raise OSError("disk on fire")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="fire"):
            ledger.reserve(row(20.0))
        with pytest.raises((OSError, IntegrityError)):
            ledger.take_step(row(20.0))
    assert len(ledger.rows) == earlier
    reopened = on_disk(tmp_path)  # the line may have reached the disk: then it is spent, and never drawn on
    assert len(reopened.rows) in (earlier, earlier + 1)
    number = len(reopened.rows)
    assert reopened.take_step(row(20.0)) == 0 and len(reopened.rows) == number + 1


def test_a_crash_while_rewriting_leaves_the_old_file(tmp_path, monkeypatch):
    ledger = on_disk(tmp_path)
    ledger.reserve(row(30.0, steps=2))
    before = ledger.path.read_bytes()

    def replace(*_):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="power"):
        ledger.executed(0, 1)
    assert ledger.path.read_bytes() == before


def test_a_torn_last_line_is_spent_if_it_parses_and_dropped_if_not(tmp_path):
    ledger = on_disk(tmp_path)
    ledger.reserve(row(30.0, name="first"))
    first = ledger.path.read_bytes()
    ledger.reserve(row(20.0, name="second"))
    whole = ledger.path.read_bytes()
    for cut in (
        len(first),
        len(first) + 1,
        (len(first) + len(whole)) // 2,
        len(whole) - 2,
        len(whole) - 1,
        len(whole),
    ):
        ledger.path.write_bytes(whole[:cut])
        reopened = on_disk(tmp_path)
        spent = ["first", "second"][: 2 if cut >= len(whole) - 1 else 1]
        assert [event["stage"] for event in reopened.rows] == spent
        reopened.reserve(row(40.0, name="third"))
        assert [event["stage"] for event in on_disk(tmp_path).rows] == [*spent, "third"]
        assert on_disk(tmp_path).epsilon() == pytest.approx(independent_epsilon(ledger.path), abs=1e-6)


def _damage(events, header):
    yield "not JSON", [header, "{", *events]
    yield "no header", events
    yield "empty", []
    yield "missing row", [header, *events[1:]]
    yield "duplicate row", [header, events[0], *events]
    for key, value in (
        ("noise_multiplier", 0),
        ("noise_multiplier", None),
        ("steps_reserved", 0),
        ("steps_executed", 99),
        ("state", "refunded"),
        ("dataset_size", 7),
    ):
        yield key, [header, {**events[0], key: value}, *events[1:]]
    for key in events[0]:
        yield f"no {key}", [header, {k: v for k, v in events[0].items() if k != key}, *events[1:]]


def test_a_damaged_file_is_refused(tmp_path):
    ledger = on_disk(tmp_path)
    ledger.reserve(row(30.0, steps=2))
    ledger.reserve(row(20.0))
    header, *events = lines(ledger)
    for damage, content in _damage(events, header):
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in content)
        ledger.path.write_text(text)
        with pytest.raises(IntegrityError):
            on_disk(tmp_path)
            pytest.fail(f"accepted: {damage}")
        assert ledger.path.read_text() == text, "a damaged file is evidence: leave it alone"


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_line_that_is_nested_without_end(tmp_path, end):
    path = tmp_path / "ledger.jsonl"
    path.write_text("[" * 100_000 + end)
    with pytest.raises(IntegrityError, match="damaged"):
        Journal(path).read()


def test_a_second_writer_is_noticed(tmp_path):
    ledger = on_disk(tmp_path)
    ledger.reserve(row(30.0))
    other = on_disk(tmp_path)
    other.reserve(row(30.0))
    with pytest.raises(IntegrityError, match="changed"):
        ledger.reserve(row(30.0))
    with pytest.raises(IntegrityError, match="changed"):
        ledger.executed(0, 1)
    assert on_disk(tmp_path).rows == other.rows
    ledger.path.unlink()
    with pytest.raises(IntegrityError, match="changed"):
        other.reserve(row(30.0))
