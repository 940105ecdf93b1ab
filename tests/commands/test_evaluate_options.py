# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What `diffusers-dp evaluate` measures when it is asked: choices on validation images, rankings, a DP classifier."""

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.inputs import check_held_out
from support.evaluating import FAST, read, run


HOUSE = "private/unprotected/evaluation"


@pytest.fixture
def data(judged_data):
    return judged_data


def of(found, **protocol):
    return [each for each in found["measurements"] if protocol.items() <= each["protocol"].items()]


def test_real_validation_images_choose_the_epoch(data, tmp_path):
    flags = (*FAST, "--classifiers", "mlp", "--classifier_epochs", "4", "--selection", "validation")
    run(
        "--images", data / "synthetic", "--real", data / "real", "--output_dir", tmp_path, *flags,
        "--validation_size", "60",
    )  # fmt: skip
    found = read(tmp_path / HOUSE)
    (small, whole) = of(found, classifier="mlp", selection="validation", unit="%")
    assert all(1 <= each["protocol"]["chosen_epochs"][0] <= 4 for each in (small, whole))
    sizes = [found["image_sets"][f"real {side}"]["num_images"] for side in ("training", "validation")]
    assert sum(sizes) == 200 and 40 < sizes[1] < 80  # each image by its own id
    assert "of which choose the epoch" not in (tmp_path / HOUSE / "report.html").read_text()


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (None, "training held out none"),
        ({"images": 60, "ids": "column", "column": "key"}, "training held out 60 by their key"),
        ({"images": 50, "ids": "row", "column": None}, "training held out 50 by their row"),
    ],
)
def test_the_receipt_must_say_that_the_same_images_were_held_out(stated, words):
    """A refusal counts no real image."""
    facts, held_out = {"num_images": 150, "held_out": stated}, {"images": 40, "ids": "row", "column": None}
    with pytest.raises(UsageError, match=words) as refused:
        check_held_out(facts, held_out)
    assert "40" not in str(refused.value) and "150" not in str(refused.value)
    check_held_out({"held_out": held_out}, held_out)
    check_held_out(None, held_out)
