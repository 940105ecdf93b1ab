# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that starts from the noisy answers of an earlier one: nothing is asked, and all of it is charged."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.methods.flags import TrainingConfig
from diffusers_dp.methods.method import Method
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.central_images import MeanImages
from diffusers_dp.runs.launch import run_method
from support.flags import NUM_IMAGES
from support.runs import ledger_of, read_ledger, status, write_images


FLAGS = "--class_names left,empty,right --resolution 8 --num_channels 1 --accountant rdp --skip_preflight".split()
FLAGS += ["--num_train_images", str(NUM_IMAGES), "--target_epsilon", "1"]


@dataclass
class Asks(TrainingConfig):
    method = "own"
    output_dir: str = "run"
    rate: ClassVar[float] = 0.5

    @property
    def queries(self):
        asked = {"noise_multiplier": 5.0, "budget_share": None, "sample_rate": self.rate, "repeats": 2}
        return (MeanImages(image_shape=self.image_shape, called="central_images", **asked),)


@dataclass
class AsksOtherwise(Asks):
    rate: ClassVar[float] = 0.4


OWN = Method("own", "Own", "nowhere", "proven_with_assumptions", "It asks.", mechanisms=("Noisy sum",), config=Asks)


@pytest.fixture
def start(tmp_path):
    """Runs in a folder of `tmp_path`; returns the answer."""
    images = write_images(tmp_path / "images")

    def run(name, *flags, earlier=None, method=OWN):
        answers = []

        def train(run):
            if earlier is not None:
                run.take_answers(tmp_path / earlier / "private")
            answers.append(run.ask(*run.plan.queries))

        given = [*FLAGS, *images, "--output_dir", str(tmp_path / name), *flags]
        run_method(replace(method, train=train), preflight, given)
        return answers[0]

    return run


def test_the_answer_is_taken_and_charged_as_it_was_asked(start, tmp_path, monkeypatch):
    first = start("first")
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("asked again"))
    assert torch.equal(start("second", earlier="first"), first)
    ledgers = [read_ledger(tmp_path / name) for name in ("first", "second")]
    assert [row["stage"] for row in ledgers[0][1]] == ["central_images"]
    rows = [[{key: row[key] for key in row if key != "chain"} for row in rows] for _, rows in ledgers]
    assert rows[0] == rows[1] and rows[1][0]["steps_executed"] == 2
    taken = read_ledger(tmp_path / "second")
    resumed = start("second", "--resume_from_checkpoint", "latest", earlier="first")
    assert torch.equal(resumed, first) and read_ledger(tmp_path / "second") == taken, "once"
    assert torch.equal(start("third", earlier="second"), first)


def test_what_was_never_answered_is_asked(start, tmp_path):
    first = start("first")
    (tmp_path / "first" / "private" / "answers").rename(tmp_path / "elsewhere")
    assert not torch.equal(start("second", earlier="first"), first)
    assert len(read_ledger(tmp_path / "second")[1]) == 1


@pytest.mark.parametrize("damage", ["edited", "missing", "asked nothing"])
def test_an_answer_that_no_ledger_paid_for_is_refused(damage, start, tmp_path):
    start("first")
    file = ledger_of(tmp_path / "first")
    header, row = file.read_text().splitlines()
    if damage == "missing":
        file.unlink()
    else:
        said = json.loads(row) | {"noise_multiplier": 1.0}
        file.write_text("\n".join([header, *([json.dumps(said)] if damage == "edited" else []), ""]))
    with pytest.raises(IntegrityError):
        start("second", earlier="first")
    assert status(tmp_path / "second")["exit_code"] == 4 and not ledger_of(tmp_path / "second").exists()


def test_an_answer_about_other_images_or_another_question_is_refused(start, tmp_path):
    start("first")
    left = (tmp_path / "images" / "left").rename(tmp_path / "images" / "west")
    with pytest.raises(UsageError, match="ledger.jsonl has class_names"):
        start("second", "--class_names", "west,empty,right", earlier="first")
    left.rename(tmp_path / "images" / "left")
    with pytest.raises(UsageError, match="sampling_probability = 0.5, this run has 0.4"):
        start("second", earlier="first", method=replace(OWN, config=AsksOtherwise))
    assert not (tmp_path / "second").exists()
