# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp train`: the packaged script of a method, with its flags, its words and its exit codes."""

import pytest

from diffusers_dp import cli
from diffusers_dp.commands import train
from diffusers_dp.distributed.interruption import GO_ON
from diffusers_dp.errors import BudgetExceeded, IntegrityError, Interrupted, UsageError


def ended(*argv):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *argv])
    return end.value.code


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
