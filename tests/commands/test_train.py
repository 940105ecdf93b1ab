# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp train`: the packaged script of a method, with its flags, its words and its exit codes."""

from pathlib import Path

import pytest

from diffusers_dp import cli
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.commands import train
from diffusers_dp.distributed.interruption import GO_ON
from diffusers_dp.errors import BudgetExceeded, IntegrityError, Interrupted, UsageError
from diffusers_dp.methods.registry import METHODS


def ended(*argv):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *argv])
    return end.value.code


def test_the_flags_are_the_method_s(monkeypatch):
    given = []
    monkeypatch.setattr(train, "run_method", lambda *arguments: given.append(arguments))
    cli.main(["train", "dpdm", "--config", "mnist_cpu", "--dry_run", "--help", "-x"])
    assert given == [(METHODS["dpdm"], preflight, ["--config", "mnist_cpu", "--dry_run", "--help", "-x"])]


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.script])
def test_help_is_that_of_the_method(method, capsys):
    assert ended(method, "--help") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {Path(METHODS[method].script).name}") and METHODS[method].title in said


@pytest.mark.parametrize("argv", [["pge"], ["train_dpdm"], ["--seed", "3"], []], ids=str)
def test_a_method_without_a_script_is_refused_in_one_sentence(argv, capsys):
    assert ended(*argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "method" in said and said.count("\n") == 1
    assert not argv or "dp_feta" in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("no"), 2, "error: no\n"),
        (BudgetExceeded("no"), 3, "error: no\n"),
        (IntegrityError("no"), 4, "error: no\n"),
        (Interrupted("no"), 75, "error: no\n"),
        (KeyboardInterrupt(), 130, f"interrupted: {GO_ON}\n"),
    ],
)  # fmt: skip
def test_a_run_ends_as_the_script_does(error, code, words, monkeypatch, capsys):
    def ends(*_):
        raise error

    monkeypatch.setattr(train, "run_method", ends)
    assert ended("dpdm") == code
    assert capsys.readouterr().err == words
