# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation leaves in a release: a count outside the hashes."""

import os

import pytest

from diffusers_dp import verify
from diffusers_dp.evaluation.judging import count_evaluation


RECEIPT = "privacy_receipt.json"


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_count_lies_outside_the_hashes(release, capsys):
    before = files_of(release)
    for _ in range(2):
        count_evaluation(release)
    after = files_of(release)
    assert {name for name in after if after[name] != before.get(name)} == {RECEIPT} and before.keys() == after.keys()
    receipt, problems = verify.verify(release)
    assert receipt["private_evaluations"] == 2 and problems == []
    assert verify.report(release) == 0
    assert "Private images were read 2 time(s)" in capsys.readouterr().out


class Killed(BaseException):
    pass


def test_a_count_that_is_killed_leaves_the_release_as_it_was(release, monkeypatch):
    """Nothing is missing, and nothing that the receipt does not list is in the folder."""
    before = files_of(release)

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", killed)
        count_evaluation(release)
    assert files_of(release) == before
    count_evaluation(release)
    receipt, problems = verify.verify(release)
    assert receipt["private_evaluations"] == 1 and problems == [] and os.listdir(release.parent) == ["release"]
