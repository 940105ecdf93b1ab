# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Words that tell the truth: an epsilon never looks smaller, and a bound never larger than it is."""

import json
import math

import numpy as np
import pytest
from huggingface_hub import ModelCard
from scipy.stats import norm

from diffusers_dp.accounting.attack_bounds import attack_bounds_of
from diffusers_dp.release.plain_words import (
    attack_in_short,
    attack_in_words,
    best_guess,
    plain_guarantee,
    questions,
    short_number,
    strength,
)


@pytest.fixture(scope="module")
def receipt(honest):
    return json.loads((honest / "privacy_receipt.json").read_text())


def with_epsilon(receipt, epsilon, unit="image"):
    return {**receipt, "claimed_epsilon": {"rdp": {"epsilon": epsilon}}, "unit_of_privacy": unit}


@pytest.mark.parametrize("value", [1.0, 0.9999, 1.6789e-6, 9.571723e-05, 9.994, 9.996, 123.4, 5.0, 0.3])
def test_a_short_number_is_near_and_never_below(value):
    assert value * (1 - 1e-9) <= float(short_number(value)) <= value * 1.011


@pytest.mark.parametrize(
    ("epsilon", "word"), [(0.1, "strong"), (1, "strong"), (1.01, "moderate"), (10, "moderate"), (10.1, "weak")]
)
def test_the_words_follow_epsilon(receipt, epsilon, word):
    assert strength(epsilon, 1e-4, 9999).word == strength(epsilon, 0, 1).word == word
    said = plain_guarantee(with_epsilon(receipt, epsilon))
    assert ("almost the same whether or not your image was used" in said) == (word == "strong")
    assert ("too wide to reassure" in said) == (word == "weak") and "per image." in said


@pytest.mark.parametrize(
    ("epsilon", "delta", "number", "word"),
    [
        (0.1, 1.001e-4, 9000, "moderate"),  # large
        (0.1, 0.0051, 50, "moderate"),  # the default of 50
        (0.1, 0.02, 50, "weak"), (0.1, 0.5, 50, "weak"), (5, 0.5, 50, "weak"),  # 1/N and more
        (0.1, 1e-4, 10_000, "weak"), (0.1, 5e-5, 60_000, "weak"),  # and where that is little
        (0.1, math.nextafter(1e-4, 0), 10_000, "strong"),
        (9.9, 1e-4, 1000, "moderate"), (9.99, 0.02, 40, "weak"),  # the best guess is beyond epsilon 10's
        (20, 1e-6, 1000, "weak"),
        (0.1, math.nan, 50, "weak"), (math.nan, 1e-6, 50, "weak"),
    ],
)  # fmt: skip
def test_delta_makes_the_words_weaker(epsilon, delta, number, word):
    assert strength(epsilon, delta, number).word == word


def test_no_word_is_better_for_a_larger_epsilon_or_delta():
    order = ["strong", "moderate", "weak"]
    for number in (1, 3, 50, 1437, 60_000):
        found = np.array(
            [
                [order.index(strength(epsilon, delta, number).word) for epsilon in np.geomspace(0.01, 100, 41)]
                for delta in [0.0, *np.geomspace(1e-9, 1, 60)]
            ]
        )
        assert (np.diff(found, axis=0) >= 0).all() and (np.diff(found, axis=1) >= 0).all()


def test_the_unit_is_named(receipt):
    assert "the images of your patient_id were used" in plain_guarantee(with_epsilon(receipt, 1, "patient_id"))
    assert "1,000 patient_ids that were used" in attack_in_words({**receipt, "unit_of_privacy": "patient_id"})
    assert "1,000 unused patient_ids" in attack_in_short({**receipt, "unit_of_privacy": "patient_id"})


def test_the_best_guess_bounds_the_best_test_there_is():
    """Of a Gaussian mechanism, whose best test is known: half a distance in standard deviations."""
    assert (
        best_guess(0, 0) == 0.5
        and best_guess(1, 0) == pytest.approx(math.e / (1 + math.e))
        and best_guess(1e6, 0) <= 1
    )
    for distance in (0.1, 0.5, 1.0, 2.0):
        right = norm.cdf(distance / 2)
        for epsilon in np.linspace(0.05, 6, 30):
            delta = norm.cdf(distance / 2 - epsilon / distance) - math.exp(epsilon) * norm.cdf(
                -distance / 2 - epsilon / distance
            )
            assert best_guess(epsilon, delta) >= right - 1e-12


def test_two_numbers_say_what_an_attack_can_find(honest, receipt):
    found = attack_bounds_of(receipt).true_positive_rates[0.001]
    said = f"Then it finds at most {math.ceil(1000 * found)} of 1,000 images that were used."
    assert 0.01 < found < 0.1 and said in attack_in_words(receipt) and "may tell more" not in attack_in_words(receipt)
    assert f"accuses 1 of 1,000 unused images finds at most {math.ceil(1000 * found)} of" in attack_in_short(receipt)
    assert said in (honest / "README.md").read_text(encoding="utf-8")
    assert "may tell more" in attack_in_words({**receipt, "leaky_outputs": ["a log"]})


def test_a_release_is_not_lost_for_want_of_words(receipt):
    """Where recomputing would take too long."""
    events = [{**receipt["events"][0], "noise_multiplier": 1e-2, "steps_reserved": 10**6}]
    assert attack_in_words({**receipt, "events": events}) == attack_in_short({**receipt, "events": events}) == ""


def test_reservations_of_one_question_are_one_line(receipt):
    assert [(row["stage"], row["steps"]) for row in questions(receipt["events"])] == [
        ("frequency_features", 1),
        ("dp_sgd", 40),
    ]


def test_the_card_has_all_that_a_stranger_asks(honest, receipt):
    card = ModelCard.load(honest / "README.md")
    assert card.data.library_name == "diffusers" and card.data.pipeline_tag == "unconditional-image-generation"
    assert {"differential-privacy", "dp-sgd", "image-generation", "synthetic", "class-conditional"} == set(
        card.data.tags
    )
    assert plain_guarantee(receipt) in card.text
    headings = [line for line in card.text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## What was asked of the training images", "## What is public", "## What the guarantee does not cover",
        "## Intended use", "## Use", "## Verify", "## Training", "## Citation",
    ]  # fmt: skip
    assert "TODO" not in card.content and "{{" not in card.content and "[More Information Needed]" not in card.content
    snippet = card.text.split("```python")[1].split("```")[0].replace("path/to/this/release", str(honest))
    found: dict = {}
    exec(snippet, found)  # as a reader would run it
    assert len(found["images"]) == 3
