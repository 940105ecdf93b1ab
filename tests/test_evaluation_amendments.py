# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation leaves in a release: a count outside the hashes, and numbers only where they are published on purpose."""

import json
import os

import pytest

from diffusers_dp import verify
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.evaluation.amendments import count_evaluation, publish
from diffusers_dp.evaluation.measurement import Measurement


RECEIPT = "privacy_receipt.json"
FOUND = [Measurement("accuracy", 0.9312, {"classifier": "logreg", "note": "a | b <script>"}, 0.004)]


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_count_lies_outside_the_hashes(release, capsys):
    before = files_of(release)
    assert [count_evaluation(release), count_evaluation(release)] == [1, 2]
    after = files_of(release)
    assert {name for name in after if after[name] != before.get(name)} == {RECEIPT} and before.keys() == after.keys()
    receipt, problems = verify.verify(release)
    assert receipt["private_evaluations"] == 2 and problems == []
    assert verify.report(release) == 0
    assert "Private images were read 2 time(s)" in capsys.readouterr().out


def test_numbers_from_private_images_lower_the_status_and_are_named(release, capsys):
    publish(release, FOUND, read_private_data=True)
    receipt, problems = verify.verify(release)
    assert problems == [] and receipt["status"] == "proven_except_leaky_outputs"
    assert receipt["leaky_outputs"] == ["evaluation against private images, published in the model card: accuracy"]
    assert json.loads((release / "model_index.json").read_text())["privacy"]["status"] == receipt["status"]
    card = (release / "README.md").read_text()
    assert "0.9312 (s.e. 0.004)" in card and "not covered by the guarantee" in card
    assert "<script>" not in card and "a \\| b" in card
    assert verify.report(release) == 0
    assert "NOT covered by this guarantee: evaluation against private images" in capsys.readouterr().out


def test_numbers_from_public_images_enter_the_card_alone(release):
    before = files_of(release)
    publish(release, FOUND, read_private_data=False)
    publish(release, [Measurement("accuracy", 0.5)], read_private_data=False)
    after = files_of(release)
    assert {name for name in after if after[name] != before.get(name)} == {"README.md"}
    card = after["README.md"].decode()
    assert card.count("## Evaluation") == 1 and "0.9312" not in card and "| accuracy | 0.5 |" in card
    assert verify.verify(release)[1] == [] and os.listdir(release.parent) == ["release"]


@pytest.mark.parametrize(
    "change", [lambda folder: count_evaluation(folder), lambda folder: publish(folder, FOUND, read_private_data=True)]
)
def test_what_is_no_release_is_left_alone(release, tmp_path, change):
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="--model"):
            change(wrong)
    (release / "extra.bin").write_bytes(b"")
    before = files_of(release)
    with pytest.raises(IntegrityError, match="extra.bin"):
        change(release)
    assert files_of(release) == before


def test_leaky_outputs_that_are_no_words_are_named(release):
    for wrong in ("none", [3], ["x" * 3000]):
        receipt = json.loads((release / RECEIPT).read_text()) | {"leaky_outputs": wrong}
        assert any("no list of words" in problem for problem in verify.check_statement(receipt))
