# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which epoch counts: the published split, and a private choice whose every promise is checked."""

import dataclasses
import functools
import json
import math
import tempfile
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from diffusers_dp.accounting.ledger import LedgerRow, PrivacyLedger
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.evaluation import selection, utility
from diffusers_dp.evaluation.classifiers import build_classifier
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.selection import PrivateSelection, check_choice, choose_privately, split_for_training
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy import sensitive
from diffusers_dp.privacy.records import PrivateRecords
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.keyed_hash import digests_of
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.doors import Noiseless


EPSILON, DELTA = 1.0, 1e-5
CLASSES = tuple("abc")
NUM_IMAGES = 30


def validation(labels=None):
    """Each image says its class in its first pixel."""
    labels = np.arange(NUM_IMAGES) % 3 if labels is None else np.asarray(labels)
    images = np.zeros((len(labels), 1, 4, 4), dtype=np.uint8)
    images[:, 0, 0, 0] = labels
    return ImageSet(images, labels.astype(np.int64), CLASSES)


def right(images):
    return images[:, 0, 0, 0].astype(np.int64)


def wrong(images):
    return right(images) + 1


def right_about_one_class(images):
    return np.zeros(len(images), dtype=np.int64)


GROUPS = ((wrong, right), (right_about_one_class, wrong, right, wrong))
COUNTS = [0, 30, 10, 0, 30, 0]


def choose(images=None, generator=None, query="ours", **options):
    with pytest.MonkeyPatch.context() as patch:
        if generator is not None:
            patch.setattr(sensitive, "PrivateGenerator", lambda exact: generator)
        return choose_privately(GROUPS, asked(images or validation(), **options), query)


def asked(images, ledger_path=None):
    return PrivateSelection(images, EPSILON, DELTA, ledger_path or Path(tempfile.mkdtemp(), "scans.jsonl"))


def test_a_candidate_is_right_about_an_image_by_itself():
    """Each state of a classifier sees batches of one: beside others, rounding could flip its answer."""
    images = validation()
    classifier = build_classifier("cnn", image_shape=(1, 8, 8), epochs=1).prepare(
        ImageSet(np.zeros((3, 1, 8, 8), dtype=np.uint8), np.arange(3), CLASSES)
    )
    classifier.candidates = {epoch: classifier._state() for epoch in (1, 2)}
    classifier.candidates[2]["14.bias"] = torch.tensor([0.0, 50.0, 0.0])
    sizes, large = [], images.images.repeat(2, 2).repeat(2, 3)
    classifier.network.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    candidates = [utility._Candidate(classifier, epoch) for epoch in (1, 2)]
    rows = selection._correctness(candidates, torch.from_numpy(large).float() / 255, torch.from_numpy(images.labels))
    assert set(sizes) == {1} and len(sizes) == 2 * NUM_IMAGES
    assert rows[:, 1].tolist() == [float(label == 1) for label in images.labels]


# The split.


@pytest.mark.parametrize(
    ("count", "size", "train", "rest"),
    [
        (60_000, None, 55_000, 5_000),
        (63_000, None, 55_000, 8_000),  # as three GPUs draw
        (120_000, None, 55_000, 65_000),
        (12_000, None, 11_000, 1_000),
        (120_000, 24_000, 22_000, 2_000),
        (120_000, 96_000, 88_000, 8_000),  # a curve over sizes would be flat from 60,000 on
        (2, None, 1, 1),
    ],
)
def test_the_split_is_the_published_one(count, size, train, rest):
    images = ImageSet(np.arange(count).astype(np.uint8).reshape(-1, 1, 1, 1), np.arange(count))
    first, second = split_for_training(images, size)
    assert (len(first), len(second)) == (train, rest)
    order = np.random.default_rng(0).permutation(count)
    np.testing.assert_array_equal(np.concatenate([first.labels, second.labels]), order[: size or count])
    np.testing.assert_array_equal(first.images.ravel(), first.labels.astype(np.uint8))


# The private choice.


def check_counts(choose):
    choice = choose(generator=Noiseless(bytes(16)))
    assert choice.chosen == (1, 2)
    np.testing.assert_allclose(np.concatenate(choice.noisy_accuracies) * NUM_IMAGES, COUNTS, atol=1e-4)


def check_sensitivity(choose):
    """An image zeroed out moves the sum by no more than the row states, also one about which every candidate is
    right."""

    reserve, rows = PrivacyLedger.reserve, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyLedger, "reserve", lambda self, row: rows.append(row) or reserve(self, row))
        patch.setattr(
            selection, "_correctness", lambda candidates, images, labels: torch.ones(len(images), len(candidates))
        )
        whole = choose(generator=Noiseless(bytes(16)))
    sums = np.concatenate(whole.noisy_accuracies) * NUM_IMAGES
    moved = np.linalg.norm(sums / NUM_IMAGES)  # every image moves the sum alike
    assert moved == pytest.approx(math.sqrt(len(COUNTS)), rel=1e-6)  # nothing was clipped away
    assert rows[0].query["sensitivity"] == rows[0].query["clip_norm"] == pytest.approx(moved)


def check_noise(choose):
    """One draw for each candidate, once, with the standard deviation that the budget asks for."""
    draws = []

    class Counting(PrivateGenerator):
        def normal(self, shape, std, device="cpu"):
            noise = super().normal(shape, std, device)
            draws.append((tuple(shape), std, noise))
            return noise

    choice = choose(generator=Counting(bytes(16)))
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA)
    assert [shape for shape, *_ in draws] == [(1, len(COUNTS))]
    assert draws[0][1] == pytest.approx(sigma * math.sqrt(len(COUNTS)), rel=2e-3)
    noise = np.concatenate(choice.noisy_accuracies) * NUM_IMAGES - COUNTS
    np.testing.assert_allclose(noise, draws[0][2][0], atol=1e-4)
    assert draws[0][2].abs().min() > 0


def check_epsilon(choose):
    """The closed form of the Gaussian mechanism (Balle & Wang 2018), by dp_accounting."""
    facts = choose().facts
    closed_form = dp_accounting.get_epsilon_gaussian(facts["noise_multiplier"], DELTA)
    assert facts["epsilon"] == pytest.approx(closed_form, abs=1e-3)
    assert closed_form <= EPSILON + 1e-9
    assert closed_form > 0.99 * EPSILON  # nor is budget thrown away


def check_row_first(choose):
    """When noise is drawn, the row is there."""
    order = []
    reserve, normal = PrivacyLedger.reserve, PrivateGenerator.normal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyLedger, "reserve", lambda self, row: order.append("row") or reserve(self, row))
        patch.setattr(PrivateGenerator, "normal", _watched(normal, lambda: order.append("noise")))
        watched = _watched(PrivateRecords.batches_for_query, lambda: order.append("images"))
        patch.setattr(PrivateRecords, "batches_for_query", watched)
        choose()
    assert order[-2:] == ["row", "noise"] and "images" in order


def _watched(function, tell):
    return lambda *args: tell() or function(*args)


@pytest.mark.parametrize("check", [check_counts, check_sensitivity, check_noise, check_epsilon, check_row_first])
def test_the_private_choice(check):
    check(choose)


# The ledger of the validation images.


def train(path, release_id="0" * 16, sigma=4.0, **changes):
    """A training of the data set, as its ledger has it."""
    ledger = PrivacyLedger(
        path, release_id=release_id, dataset_id=path.stem, target_delta=DELTA,
        **{"target_epsilon": 3.0, "num_images": 100, **changes},
    )  # fmt: skip
    ledger.reserve(LedgerRow("dp_sgd", sampled(1.0, sigma)))
    ledger.close()
    return ledger


def sum_of(*sigmas):
    """By dp_accounting alone."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for sigma in sigmas:
        accountant.compose(dp_accounting.GaussianDpEvent(sigma))
    return accountant.get_epsilon(DELTA)


def test_a_choice_and_the_trainings_of_its_data_set_have_one_sum(tmp_path):
    """Whichever comes first: each reads what the other wrote, in one file."""
    path = tmp_path / "scans.jsonl"
    train(path)
    facts = choose(ledger_path=path).facts
    assert facts["epsilon_of_all_releases"] == pytest.approx(sum_of(4.0, facts["noise_multiplier"]), abs=1e-3)
    later = train(path, "1" * 16)
    assert [(prior["num_images"], len(prior["events"])) for prior in later.prior_releases] == [(100, 1), (30, 1)]
    assert later.epsilon_of_all_releases() == pytest.approx(sum_of(4.0, 4.0, facts["noise_multiplier"]), abs=1e-3)
    assert [file.name for file in tmp_path.glob("*.jsonl")] == ["scans.jsonl"]


def test_a_bound_of_the_data_set_holds_for_a_choice(tmp_path):
    """It gets what is left of it, or is refused before classifiers are trained."""
    path = tmp_path / "scans.jsonl"
    train(path, dataset_epsilon=1.3)
    facts = choose(ledger_path=path).facts
    assert facts["epsilon"] < EPSILON and 1.29 < facts["epsilon_of_all_releases"] <= 1.3 + 1e-6
    full = tmp_path / "full.jsonl"
    train(full, dataset_epsilon=train(tmp_path / "alone.jsonl").epsilon_of_all_releases())
    for check in (check_choice, functools.partial(choose_privately, GROUPS)):
        with pytest.raises(UsageError, match="leaves nothing|uses up"):
            check(asked(validation(), ledger_path=full), "ours")


def of_patients():
    """Ten patients of three images each."""
    return dataclasses.replace(
        validation(), ids=digests_of((np.arange(NUM_IMAGES) // 3).tolist()), unit_of_privacy="patient_id"
    )


def test_a_choice_has_the_unit_of_the_trainings(tmp_path):
    """All images of a patient move the sum by what one image would; other units are not added up."""
    path = tmp_path / "scans.jsonl"
    choice = choose(of_patients(), ledger_path=path, generator=Noiseless(bytes(16)))
    header, row = map(json.loads, path.read_text().splitlines())
    assert header["unit_of_privacy"] == "patient_id" and row["query"]["max_images_per_unit"] == 8
    np.testing.assert_allclose(np.concatenate(choice.noisy_accuracies) * NUM_IMAGES * 3, COUNTS, atol=1e-4)
    assert choice.facts["unit_of_privacy"] == "patient_id"
    with pytest.raises(IntegrityError, match="their costs do not add up"):
        train(path)
    train(tmp_path / "images.jsonl")
    for check in (check_choice, functools.partial(choose_privately, GROUPS)):
        with pytest.raises(IntegrityError, match="their costs do not add up"):
            check(asked(of_patients(), ledger_path=tmp_path / "images.jsonl"), "ours")


def test_a_second_choice_finds_nothing_left(tmp_path):
    choose(ledger_path=tmp_path / "ledger.jsonl")
    with pytest.raises(UsageError, match="have answered before"):
        choose(ledger_path=tmp_path / "ledger.jsonl", query="another")


def test_the_answer_is_stored_at_once_and_found_by_its_query(tmp_path, monkeypatch):
    path = tmp_path / "ledgers" / "scans.jsonl"
    first = choose(ledger_path=path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with monkeypatch.context() as patch:
        patch.setattr(SensitiveImages, "noisy_sum", None)
        assert choose(ledger_path=path) == first
    with pytest.raises(UsageError, match="candidates = 6"):
        choose_privately(GROUPS[:1], asked(validation(), ledger_path=path), "ours")
    assert len(path.read_text().splitlines()) == 2


def test_two_choices_at_once_are_one(tmp_path, monkeypatch):
    path, asked = tmp_path / "scans.jsonl", SensitiveImages.noisy_sum

    def another(*args, **options):
        monkeypatch.setattr(SensitiveImages, "noisy_sum", asked)
        with pytest.raises(UsageError, match="in use by process"):
            choose(ledger_path=path, query="another")
        return asked(*args, **options)

    monkeypatch.setattr(SensitiveImages, "noisy_sum", another)
    choose(ledger_path=path)
    assert len(path.read_text().splitlines()) == 2


def test_a_label_outside_the_classes_counts_for_nobody():
    labels = np.array([300, -1, 0, 1])
    choice = choose(
        ImageSet(validation(np.array([0, 0, 0, 1])).images, labels, CLASSES), generator=Noiseless(bytes(16))
    )
    assert choice.noisy_accuracies[0] == pytest.approx((0, 0.5), abs=1e-4)


def test_an_image_that_cannot_be_read_changes_no_number_but_the_counts(tmp_path):
    """Rates, divisors and the noise go by the declared number."""
    whole, rows = validation(), {}
    short = dataclasses.replace(whole.subset(np.arange(1, NUM_IMAGES)), num_declared=NUM_IMAGES)
    for name, images in (("whole", whole), ("short", short)):
        path = tmp_path / f"{name}.jsonl"
        choice = choose(images, ledger_path=path, generator=Noiseless(bytes(16)))
        header, row = map(json.loads, path.read_text().splitlines())
        rows[name] = header["num_images"], row["query"], row["noise_multiplier"], choice.facts
        assert choice.noisy_accuracies[0][1] == pytest.approx(len(images) / NUM_IMAGES)
    assert rows["whole"] == rows["short"]
