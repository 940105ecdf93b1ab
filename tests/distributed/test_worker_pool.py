# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Commands in several processes: the numbers, images and files of one, each part done once, and what ends one ends
all."""

import json
import re
import stat
from collections import Counter

import pytest

from diffusers_dp import cli, verify
from diffusers_dp.distributed.launcher import cores
from diffusers_dp.distributed.worker_pool import LOST, STOPPED, WorkerPool, _use_cores
from diffusers_dp.evaluation.report import REPORT_NAME
from diffusers_dp.verify import RECEIPT_NAME
from support import forked
from support.places import TESTS
from support.processes import SEVERAL
from support.runs import BITS_OF_A_CPU
from support.small_commands import patches


COMMANDS = TESTS / "support" / "small_commands.py"
HOUSE = "private/unprotected/evaluation"


def flags_of(release, data, out):
    """Without the pixels, which no process sends to another."""
    return [
        "evaluate", "--model", release, "--real", data / "real", "--output_dir", out, "--num_images", "30",
        "--num_inference_steps", "2", "--extractors", "classifier", "--metrics", "precision_recall", "inception_score",
        "--classifiers", "logreg", "cnn", "--utility_sizes", "20", "--solver", "heun", "--s_churn", "10",
    ]  # fmt: skip


def files_of(folder):
    """By name; those of features have the hash of what they hold. Without what `datasets` caches, whose names hold
    paths."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] != "cache"
    }


def modes_of(folder):
    """Of the folder and of those in it: features and finished steps are private."""
    inside = (path for path in (folder, *folder.iterdir()) if path.is_dir())
    return {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in inside}


def count_of(release):
    return verify.verify(release)[0]["private_evaluations"]


@BITS_OF_A_CPU
@pytest.mark.parametrize("count", SEVERAL)
def test_several_processes_find_what_one_finds(count, release, judged_data, tmp_path, monkeypatch):
    """Images, features, classifiers and the report; the receipt counts once, and nothing is left over outside of the
    caches."""
    flags = flags_of(release, judged_data, tmp_path / "several")
    done = forked.run(COMMANDS, tmp_path / "several.txt", "nothing", *flags, folder=tmp_path, count=count)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("Written to") == done.stdout.count("This reads private data") == 1
    assert count_of(release) == 1
    with monkeypatch.context() as patch:
        for place, name, value in patches(tmp_path / "one.txt"):
            patch.setattr(place, name, value)
        threads = max(1, cores() // count)  # bits of drawn images follow from it on some CPUs
        patch.setattr("diffusers_dp.distributed.worker_pool.cores", lambda: threads)
        _use_cores()
        cli.main(list(map(str, flags_of(release, judged_data, tmp_path / "one"))))
    several, one = (tmp_path / name / HOUSE for name in ("several", "one"))
    assert json.loads((one / REPORT_NAME).read_text())["settings"]["s_churn"] == 10
    found = files_of(several)
    assert found.keys() == files_of(one).keys()
    for name, path in files_of(one).items():
        counts = name.endswith(RECEIPT_NAME)  # how often it was evaluated
        if name.endswith((".parquet", ".npy", ".json")) and not counts:
            assert found[name].read_bytes() == path.read_bytes(), name
    assert modes_of(several) == modes_of(one) and modes_of(several)["."] == 0o700
    assert {entry.name for entry in (tmp_path / "several").iterdir()} == {"private"}

    by_whom = [line.split(" ", 2) for line in (tmp_path / "several.txt").read_text().splitlines()]
    alone = [line.split(" ", 2)[1:] for line in (tmp_path / "one.txt").read_text().splitlines()]
    assert Counter(tuple(each[1:]) for each in by_whom) == Counter(map(tuple, alone))  # each part once
    for kind in ("shard", "features", "classifier"):
        shares = Counter(rank for rank, what, _ in by_whom if what == kind)
        assert len(shares) == count, kind


@pytest.mark.parametrize("trouble", ["full", pytest.param("killed", marks=pytest.mark.slow)])
def test_what_ends_one_process_ends_all_with_one_sentence(trouble, honest, tmp_path):
    flags = ["sample", honest, "--output_dir", tmp_path / "out", "--num_images", "10", "--num_inference_steps", "1"]
    done = forked.run(COMMANDS, tmp_path / "notes.txt", trouble, *flags, folder=tmp_path, count=2)
    said = re.findall("^error: .*", done.stderr, re.MULTILINE)
    assert done.returncode and len(said) == 1 and "images in" not in done.stdout
    assert [path.name for path in (tmp_path / "out" / "data").iterdir()] == ["train-00000-of-00003.parquet"]
    if trouble == "full":
        assert "No space left" in said[0] and done.returncode == 2
    else:
        assert said[0].removeprefix("error: ") in (LOST, STOPPED)


def test_one_process_does_all_parts_itself():
    results = WorkerPool().map(lambda part: part * 2, range(5))
    assert next(results) == 0 and list(results) == [2, 4, 6, 8] and WorkerPool().count == 1


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_wrong_flag_is_told_by_the_first_process_of_a_machine(rank, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as refused:
        cli.main(["evaluate", "--num_imag", "3"])
    assert refused.value.code == 2 and capsys.readouterr().err.count("error: ") == (rank == "0")
