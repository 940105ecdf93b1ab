# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The one query that a finished model asks about its training images: sensitivity, price, and numbers that are what
they are called."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import EDMDPMSolverMultistepScheduler

from diffusers_dp.accounting.ledger import LedgerRow, PrivacyLedger
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import BudgetExceeded, UsageError
from diffusers_dp.evaluation import networks
from diffusers_dp.evaluation.charged import Judge, charged_evaluation, drawn_images
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.mechanisms import sampled
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.privacy.stored_answers import NoisyAnswers
from diffusers_dp.sampling.drawing import CLASS_SHARE, Drawing, parse_balance, released_balance
from support.doors import Noiseless
from support.releases import make_release, make_unet


CLASSES = ("zero", "one", "two", "three")
SIGMA = 4.0
ROW = LedgerRow("evaluation_reserve", sampled(1.0, SIGMA))
PIXELS = 64


def digits(train=True, number=None):
    images, labels = load_digits_split(train=train)
    images, labels = images[labels < 4][:number], labels[labels < 4][:number]
    return images, labels


def door(images, labels, names=CLASSES, **options):
    number = options.pop("num_images", len(images))
    options.setdefault("ledger", new_ledger(options.get("num_units", number)))
    return SensitiveImages(
        images, labels, num_images=number, image_shape=(1, 8, 8), class_names=names, **options,
    )  # fmt: skip


def new_ledger(num_images, target_epsilon=50.0):
    return PrivacyLedger(None, target_epsilon=target_epsilon, target_delta=1e-5, num_images=num_images)


@pytest.fixture(scope="module")
def synthetic():
    """Real test digits in the place of drawn ones."""
    images, labels = digits(train=False)
    return ImageSet(images, labels, CLASSES)


@pytest.fixture(scope="module")
def judge(synthetic):
    return Judge(synthetic, epochs=8)


@pytest.fixture(scope="module")
def unlabelled_judge(synthetic):
    return Judge(ImageSet(synthetic.images))


def ask(judge, images, *, generator=None):
    images._generator = generator or images._generator
    return judge.ask(images, ROW)


# The query.


def test_no_image_moves_the_sum_by_more_than_the_sensitivity_that_is_paid_for(judge, unlabelled_judge):
    rng = np.random.default_rng(0)
    images = np.stack(
        [np.zeros((1, 8, 8)), np.full((1, 8, 8), 255), np.eye(8)[None] * 255, rng.integers(0, 256, (1, 8, 8))]
    ).astype(np.uint8)
    for asked, names, norm in ((judge, CLASSES, math.sqrt(3)), (unlabelled_judge, None, math.sqrt(2))):
        labels = None if names is None else np.arange(4)
        ledger = new_ledger(4)
        whole = ask(asked, door(images, labels, names, ledger=ledger), generator=Noiseless())
        assert ledger.rows[0]["query"]["sensitivity"] == ledger.rows[0]["query"]["clip_norm"] == norm
        for missing in range(4):
            readable = np.arange(4) != missing
            part = ask(asked, door(images, labels, names, readable=readable), generator=Noiseless())
            moved = (whole - part).norm().item()
            assert moved <= norm + 1e-5
            if missing:  # the blank image has no direction, and moves nothing but its class
                assert moved == pytest.approx(norm, rel=1e-5), "not clipped: the moments are those of the paper"


def test_an_image_is_taken_for_a_class_by_itself(judge):
    """In a batch of one: beside others, rounding could flip what a classifier takes it for."""
    sizes, images = [], torch.from_numpy(digits(number=9)[0]).float() / 255
    hook = judge.classifier.network.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    together = judge.features(images, None)
    hook.remove()
    assert sizes == [1] * 9
    assert torch.equal(torch.cat([judge.features(each, None) for each in images.split(2)])[:, :4], together[:, :4])


def test_it_is_asked_once_at_the_reserved_noise_and_written_down_first(judge):
    images, labels = digits(number=40)
    ledger = new_ledger(40)
    ask(judge, door(images, labels, ledger=ledger))
    (row,) = ledger.rows
    assert (row["stage"], row["noise_multiplier"], row["sampling_probability"]) == (ROW.name, SIGMA, 1.0)
    assert (row["steps_executed"], row["partition"], row["state"]) == (1, "label", "executed")
    assert row["query"]["synthetic_images"] == len(judge.synthetic)

    poor = new_ledger(40, target_epsilon=0.1)
    with pytest.raises(BudgetExceeded):
        ask(judge, door(images, labels, ledger=poor))
    assert poor.rows == []


def test_the_noise_is_that_of_the_row_in_every_coordinate(judge):
    images, labels = digits(number=40)
    silent = ask(judge, door(images, labels), generator=Noiseless())
    noise = torch.stack([ask(judge, door(images, labels)) - silent for _ in range(30)])
    assert noise.std().item() == pytest.approx(SIGMA * math.sqrt(3), rel=0.02)
    assert noise.std(0).min() > 0.4 * SIGMA * math.sqrt(3)


def test_units_of_several_images_count_once(judge):
    images, labels = digits(number=60)
    units = np.arange(60) // 3
    people = door(images, labels, units=units, num_units=20, max_images_per_unit=3)
    answer = ask(judge, people, generator=Noiseless())
    assert answer[:, :4].sum().item() == pytest.approx(20)


# What is made of the answer.


def by_class(measurements, metric):
    return {
        each.protocol["class"]: each for each in measurements if each.metric == metric and "class" in each.protocol
    }


def by_metric(measurements, **protocol):
    return {
        each.metric: each
        for each in measurements
        if all(each.protocol.get(key) == value for key, value in protocol.items()) and "class" not in each.protocol
    }


def test_numbers_without_noise_are_those_of_an_independent_formula(judge, synthetic):
    images, labels = digits(number=300)
    answer = ask(judge, door(images, labels), generator=Noiseless())
    found = by_metric(judge.measurements(answer, noise_std=0.0, num_units=300))
    right = judge.classifier.predict(images) == labels
    assert found["accuracy"].value == pytest.approx(100 * right.mean()) and found["accuracy"].protocol["unit"] == "%"
    assert found["accuracy"].standard_error == 0
    accuracies, shares = (
        by_class(judge.measurements(answer, noise_std=0.0, num_units=300), metric)
        for metric in ("accuracy", CLASS_SHARE)
    )
    assert list(accuracies) == list(shares) == list(CLASSES)
    for label, name in enumerate(CLASSES):
        assert accuracies[name].value == pytest.approx(100 * right[labels == label].mean())
        assert shares[name].value == pytest.approx(100 * (labels == label).mean())

    def moment(pixels, power):
        values = (pixels.reshape(len(pixels), -1) / 255) ** power
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    for power, name in ((1, "first moment distance"), (2, "second moment distance")):
        distances = []
        for label in range(4):
            real, drawn = (
                moment(images[labels == label], power),
                moment(synthetic.images[synthetic.labels == label], power),
            )
            # What as many images of one distribution differ by.
            by_chance = drawn.var(0, ddof=1).sum() / len(drawn)
            distances.append(((real.mean(0) - drawn.mean(0)) ** 2).sum() - by_chance)
        assert found[name].value == pytest.approx(np.mean(distances), rel=1e-3, abs=1e-5)


def test_an_unreadable_image_counts_as_wrong(judge):
    images, labels = digits(number=100)
    readable = np.arange(100) < 90
    answer = ask(judge, door(images, labels, readable=readable), generator=Noiseless())
    found = by_metric(judge.measurements(answer, noise_std=0.0, num_units=100))
    right = (judge.classifier.predict(images) == labels) & readable
    assert found["accuracy"].value == pytest.approx(right.sum())


def test_noise_neither_moves_the_numbers_nor_is_it_larger_than_stated(judge):
    images, labels = digits(number=500)
    noisy, std = 60, 3.0
    silent = ask(judge, door(images, labels), generator=Noiseless())
    torch.manual_seed(0)

    def measure(noise, noise_std):
        found = judge.measurements(silent + noise, noise_std=noise_std, num_units=500)
        return by_metric(found) | {(CLASS_SHARE, name): each for name, each in by_class(found, CLASS_SHARE).items()}

    truth = measure(0.0, 0.0)
    runs = [measure(std * torch.randn_like(silent), std) for _ in range(noisy)]
    for name, true in truth.items():
        values = np.array([run[name].value for run in runs])
        stated = np.mean([run[name].standard_error for run in runs])
        assert abs(values.mean() - true.value) < 4 * stated / math.sqrt(noisy), name
        assert values.std(ddof=1) == pytest.approx(stated, rel=0.35), name


def test_a_dataset_can_have_the_shares_that_were_paid_for(judge):
    images, labels = digits(number=300)
    answer = ask(judge, door(images, labels), generator=Noiseless())
    found = judge.measurements(answer, noise_std=0.0, num_units=300)
    receipt = {"evaluation": [each.as_json() for each in found]}
    names = ["three", "zero", "two", "one"]  # the model's order counts
    shares = parse_balance(released_balance(receipt, names), 4)
    assert shares == pytest.approx([(labels == CLASSES.index(name)).mean() for name in names], abs=1e-3)
    nothing = [{**each, "value": 0.0} for each in receipt["evaluation"]]
    for without in ({}, {"evaluation": []}, {"evaluation": receipt["evaluation"][:3]}, {"evaluation": nothing}):
        with pytest.raises(UsageError, match="--evaluation_reserve"):
            released_balance(without, names)
    with pytest.raises(UsageError, match="--class_balance released"):
        released_balance(receipt, [*names, "four"])


def test_a_card_says_all_that_was_paid_for(judge, tmp_path):
    """Distances, too, which have no unit."""
    images, labels = digits(number=300)
    answer = ask(judge, door(images, labels), generator=Noiseless())
    found = judge.measurements(answer, noise_std=0.0, num_units=300)
    card = (make_release(tmp_path, evaluation=[each.as_json() for each in found]) / "README.md").read_text()
    assert all(f"| {each.metric}" in card for each in found) and "second moment distance" in by_metric(found)


# From a model to its numbers.


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.setattr(networks, "CNN_TRAINING", networks.CNN_TRAINING.with_epochs(2))
    scheduler = EDMDPMSolverMultistepScheduler(sigma_data=0.5)
    pipeline = DPImagePipeline(make_unet(4), scheduler, id2label=dict(enumerate(CLASSES)), patch_size=1)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def evaluate(pipeline, images, folder, **options):
    drawing = Drawing(num_images=40, num_inference_steps=1, **options)
    return charged_evaluation(pipeline, images, ROW, NoisyAnswers(folder), drawing)


def test_images_are_drawn_by_the_seed_and_classes_take_turns(pipeline):
    drawing = Drawing(num_images=6, num_inference_steps=1)
    one, same, other = (drawn_images(pipeline, replace(drawing, seed=seed), Processes()) for seed in (0, 0, 1))
    assert one.images.shape == (6, 1, 8, 8) and one.images.dtype == np.uint8
    assert one.labels.tolist() == [0, 1, 2, 3, 0, 1] and one.class_names == CLASSES
    assert np.array_equal(one.images, same.images) and not np.array_equal(one.images, other.images)
    parts = drawn_images(pipeline, replace(drawing, batch_size=4), Processes())
    assert np.abs(parts.images.astype(int) - one.images).max() <= 1 and parts.labels.tolist() == one.labels.tolist()
    assert len({image.tobytes() for image in parts.images}) == 6


def test_an_answer_is_asked_for_once(pipeline, tmp_path):
    images, labels = digits(number=40)
    ledger = new_ledger(40)
    first = evaluate(pipeline, door(images, labels, ledger=ledger), tmp_path)
    assert first and evaluate(pipeline, door(images, labels, ledger=ledger), tmp_path) == first
    assert len(ledger.rows) == 1


@pytest.mark.parametrize("unreadable", [0, 15])
def test_what_is_published_is_a_share_of_the_declared_number(unreadable, pipeline, tmp_path):
    """Who cannot be read counts as wrong; how many they are, no number tells."""
    images, labels = digits(number=40)
    asked = door(images, labels, readable=np.arange(40) >= unreadable)
    asked._generator = Noiseless()
    found = evaluate(pipeline, asked, tmp_path)
    (answer,) = (open_sealed(folder)[1]["answer"]["answer"] for folder in tmp_path.iterdir())
    right, whole = float(answer[:, :4].trace()), float(answer[:, :4].sum())
    assert whole == pytest.approx(40 - unreadable, abs=0.01) and right > 1
    published = [each for each in found if each["metric"] == "accuracy" and "class" not in each["protocol"]]
    assert [each["value"] for each in published] == [pytest.approx(100 * right / 40)]


def test_the_answer_about_an_earlier_state_is_not_given_for_a_later_one(pipeline, tmp_path, capsys):
    images, labels = digits(number=40)
    ledger = new_ledger(40)
    evaluate(pipeline, door(images, labels, ledger=ledger), tmp_path)
    with torch.no_grad():
        next(pipeline.unet.parameters()).add_(0.1)
    assert evaluate(pipeline, door(images, labels, ledger=ledger), tmp_path) == []
    assert "spent before an interruption" in capsys.readouterr().out
    assert len(ledger.rows) == 1


@pytest.mark.parametrize("slack", [0, 1])
def test_an_answer_that_was_lost_is_asked_for_again_within_the_budget_alone(
    slack, pipeline, tmp_path, monkeypatch, capsys
):
    images, labels = digits(number=40)
    ledger = new_ledger(40, 1.001 * new_ledger(40).epsilon(extra=[ROW] * (1 + slack)))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(NoisyAnswers, "put", lambda *arguments, **meaning: (_ for _ in ()).throw(KeyboardInterrupt))
        evaluate(pipeline, door(images, labels, ledger=ledger), tmp_path)
    assert bool(evaluate(pipeline, door(images, labels, ledger=ledger), tmp_path)) == bool(slack)
    assert ("spent before an interruption" in capsys.readouterr().out) != bool(slack)
    assert len(ledger.rows) == 1 + slack
