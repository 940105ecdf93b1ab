# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What an evaluation leaves in a release: a count outside the hashes, and numbers only where they are published on
purpose."""

import json
import os

import pytest

from diffusers_dp import verify
from diffusers_dp.errors import IntegrityError
from diffusers_dp.evaluation import amendments
from diffusers_dp.evaluation.amendments import count_evaluation, publish, recover
from diffusers_dp.evaluation.measurement import Measurement


RECEIPT = "privacy_receipt.json"
FOUND = [Measurement("accuracy", 0.9312, {"classifier": "cnn", "standard_error_of": "3 seeds"}, 0.004, "classifiers")]


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


def test_numbers_from_private_images_lower_the_status_and_are_named(release, capsys):
    publish(release, FOUND, read_private_data=True)
    receipt, problems = verify.verify(release)
    assert problems == [] and receipt["status"] == "proven_except_leaky_outputs"
    assert receipt["leaky_outputs"] == ["evaluation against private images, published in the model card: accuracy"]
    assert json.loads((release / "model_index.json").read_text())["privacy"]["status"] == receipt["status"]
    card = (release / "README.md").read_text()
    assert "0.9312 (s.e. 0.004)" in card and "not covered by the guarantee" in card
    assert "everything in this release but what its receipt lists under `leaky_outputs`" in card
    assert "everything in this release by at most" not in card
    assert card.index("- What else was written: evaluation against private images") < card.index("## Use")
    assert card.count("- What else was written") == 1
    assert verify.report(release) == 0
    out = capsys.readouterr().out
    assert "NOT covered by this guarantee: evaluation against private images" in out and "NOTE" not in out
    publish(release, [Measurement("Fréchet distance (pixels)", 1.0, analysis="fid")], read_private_data=True)
    assert verify.report(release) == 0
    assert "Fréchet distance" in capsys.readouterr().out


CLASSIFIER = {"weights": "fitted", "weights_sha256": "5eed", "fitted_on": 183, "dimension": 128}
PRIVATE_ROWS = [
    Measurement(
        "FID", 3.25, {"extractor": "inception", "features": {"weights_sha256": "abcd"}, "real_images": 183},
        analysis="fid",
    ),
    Measurement(
        "Fréchet distance (classifier)", 4.25,
        {"extractor": "classifier", "features": CLASSIFIER, "fitted_on": "183 images"}, analysis="fid",
    ),
    Measurement(
        "accuracy", 88.75,
        {
            "trained_on": "synthetic", "num_train": 36, "num_test": 183, "unit": "%",
            "standard_error_of": "the draw of 183 test images", "standard_error_of_test_images": 0.0777,
        },
        0.0777, "classifiers",
    ),
    Measurement("accuracy", 91.25, {"trained_on": "real", "num_train": 183}, analysis="classifiers"),
    Measurement("FID", 55.25, {"state": "step 2 of DP-SGD"}, analysis="training_curve"),
    Measurement("a metric of later", 44.25, {}, analysis="fid"),
    Measurement(
        "precision", 2.5,
        {
            "num_images": 30, "unit": "bits",
            "origin": {"drawn_from": "the release", "solver": "hmc", "trajectory_length": 7, "dataset": "183 scans"},
        },
        0.25, "precision_recall",
    ),
]  # fmt: skip


def test_a_card_tells_the_numbers_of_the_release_and_nothing_else_of_private_images(release):
    publish(release, PRIVATE_ROWS, read_private_data=True)
    card = (release / "README.md").read_text()
    card = card[card.index(amendments.BEGIN) :]
    assert all(number in card for number in ("| 3.25 |", "| 4.25 |", "| 88.75% |", "| 2.5 bits |"))
    assert "solver hmc" in card and "trajectory length 7" in card  # whoever draws them again needs both
    assert "num train 36" in card
    for secret in ("5eed", "abcd", "183", "0.07", "91.25", "55.25", "44.25"):
        assert secret not in card, secret
    (output,) = json.loads((release / RECEIPT).read_text())["leaky_outputs"]
    assert output.endswith("in the model card: FID, Fréchet distance (classifier), accuracy, precision")


class Killed(BaseException):
    pass


def killed_after(moves):
    """Replaces files as `os.replace` does, and is killed before one more."""
    left, move = [moves], os.replace

    def replace(*args):
        if not left[0]:
            raise Killed
        left[0] -= 1
        move(*args)

    return replace


@pytest.mark.parametrize("moves", range(5))
def test_a_call_that_is_killed_is_finished_or_undone_by_the_next(release, monkeypatch, moves):
    """Nothing is ever missing, and nothing that the receipt does not list is in the folder."""
    before = files_of(release)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed_after(moves))
        try:
            publish(release, FOUND, read_private_data=True)
        except Killed:
            assert moves < 4
    assert files_of(release).keys() == before.keys()
    recover(release)
    receipt, problems = verify.verify(release)
    published = "0.9312" in (release / "README.md").read_text()
    assert problems == [] and (receipt["status"] == "proven_except_leaky_outputs") == published == (moves > 0)
    assert published or files_of(release) == before
    count_evaluation(release)
    receipt, problems = verify.verify(release)
    assert receipt["private_evaluations"] == 1 and problems == []
    publish(release, FOUND, read_private_data=True)
    assert os.listdir(release.parent) == ["release"]


def test_what_was_begun_does_not_end_up_in_another_release(release, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", killed_after(1))
        publish(release, FOUND, read_private_data=True)
    receipt = json.loads((release / RECEIPT).read_text())
    (release / RECEIPT).write_text(json.dumps(receipt | {"files": []}))
    before = files_of(release)
    with pytest.raises(IntegrityError, match="Restore the release first"):
        recover(release)
    assert files_of(release) == before
