# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The DP classifier: it learns through the door alone, and costs what was asked."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.evaluation import dp_classifier
from diffusers_dp.evaluation.dp_classifier import DPNetwork, reference_dp
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.privacy.sensitive import SensitiveImages


DELTA = 1e-4


@pytest.fixture(scope="module")
def digits():
    return [ImageSet(*load_digits_split(train=train), tuple("0123456789")) for train in (True, False)]


def run(digits, **options):
    return reference_dp(*digits, **{"epsilon": 2.0, "delta": DELTA, "steps": 5, "expected_batch_size": 100, **options})


def test_it_learns_real_digits(digits):
    details = run(digits, epsilon=8.0, steps=20, expected_batch_size=5000)
    accuracy = details.accuracy
    assert accuracy.metric == "accuracy" and accuracy.value > 60
    assert accuracy.protocol["trained_on"] == "real, with DP-SGD"
    assert "would add to it" in accuracy.protocol["hypothetical"]
    assert details.confusion.sum() == 360
    assert (
        accuracy.protocol["sample_rate"] == 1.0
    )  # a batch is no more than there is: full-batch steps, quickly accounted
    json.dumps(accuracy.as_json(), allow_nan=False)


def test_epsilon_is_what_was_asked_and_what_dp_accounting_finds(digits, tmp_path):
    path = tmp_path / "ledger.jsonl"
    facts = run(digits, ledger_path=path).accuracy.protocol
    header, row = map(json.loads, path.read_text().splitlines())
    assert header["target_epsilon"] == 2.0 and "separate release" in header["public_facts"]["use"]
    assert (row["stage"], row["steps_executed"], row["state"]) == ("dp_sgd", 5, "executed")
    assert row["sampling_probability"] == facts["sample_rate"] == 100 / 1437
    assert row["query"] == {"sensitivity": 1.0, "clip_norm": 1.0, "normaliser": 100, "noise_multiplicity": 1}
    event = SelfComposedDpEvent(
        PoissonSampledDpEvent(100 / 1437, GaussianDpEvent(row["noise_multiplier"])), row["steps_executed"]
    )
    found = PLDAccountant().compose(event).get_epsilon(DELTA)
    # The ledger's neighbours are images zeroed out; the accountant's default, an image added or removed, costs as
    # much.
    assert found == pytest.approx(facts["epsilon"], rel=2e-3)
    assert 1.98 < facts["epsilon"] <= 2.0 + 1e-9


def test_each_step_is_a_gradient_of_the_door(digits, monkeypatch):
    """What the optimiser sees is what the door gave out, and without the door the network stays as it was."""
    seen, ask = [], SensitiveImages.noisy_gradient

    def nothing(self, model, row_loss, mechanism, **options):
        seen.append({"sample_rate": mechanism.sample_rate, **options})
        found = ask(self, model, row_loss, mechanism, **options)
        return {name: torch.zeros_like(value) for name, value in found.items()}

    monkeypatch.setattr(SensitiveImages, "noisy_gradient", nothing)
    trained = []
    scores = dp_classifier.network_scores
    monkeypatch.setattr(
        dp_classifier, "network_scores", lambda network, *a: trained.append(network) or scores(network, *a)
    )
    run(digits, seed=3)
    assert len(seen) == 5
    assert all(options["normaliser"] == 100 and options["max_grad_norm"] == 1.0 for options in seen)
    torch.manual_seed(3)
    for parameter, start in zip(trained[0].parameters(), DPNetwork((1, 8, 8), 10).parameters(), strict=True):
        torch.testing.assert_close(parameter, start)


def test_an_image_that_cannot_be_read_changes_no_rate(digits):
    short = dataclasses.replace(digits[0].subset(np.arange(1, 1437)), num_declared=1437)
    whole, without = (run((train, digits[1])).accuracy.protocol for train in (digits[0], short))
    assert whole == {**without, "standard_error_of_test_images": whole["standard_error_of_test_images"]}
