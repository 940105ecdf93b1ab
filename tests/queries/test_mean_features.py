# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Feature maps: norm 1, each row of its own image, differentiable; what the door and the generator rely on. And the
queries about them."""

import json
import pickle
from dataclasses import replace

import pytest
import torch

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.errors import UsageError
from diffusers_dp.queries.class_counts import ClassCounts
from diffusers_dp.queries.frequency import RandomFourierFeatures
from diffusers_dp.queries.hermite import HermiteFeatures
from diffusers_dp.queries.mean_features import (
    MeanFeatures,
    SecondMoments,
    StoppingFeatures1,
    StoppingFeatures2,
    moments,
)
from diffusers_dp.queries.perceptual import PerceptualFeatures
from diffusers_dp.queries.scattering import ScatteringFeatures
from diffusers_dp.queries.tangent import MeanTangents, TangentFeatures
from support.feature_networks import save_resnet, save_vit


SHAPE = (1, 8, 8)
FIXED = (
    RandomFourierFeatures(SHAPE, 24, (0.5, 2.0, 8.0), seed=0),
    TangentFeatures(SHAPE, 6, seed=0),
    HermiteFeatures(SHAPE, 5, 3, 0.5, seed=0),
    ScatteringFeatures(SHAPE, 24, 2, 4, 1.0, 2.0, seed=0),
)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    return save_resnet(tmp_path_factory.mktemp("networks") / "resnet")


@pytest.fixture(params=[*FIXED, "perceptual"], ids=lambda each: type(each).__name__)
def features(request, resnet):
    return PerceptualFeatures(resnet, SHAPE) if request.param == "perceptual" else request.param


def test_a_map_keeps_what_the_sensitivity_rests_on(features):
    """Norm 1, a row for itself, D as it says, the same from a copy, gradients in the images, no torch draw."""
    images = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    state = torch.random.get_rng_state()
    rows = features(images)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert rows.shape == (5, features.num_features)
    assert rows.norm(dim=1).tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    alone = torch.cat([features(image[None]) for image in images])
    assert torch.allclose(alone, rows, atol=1e-5) and not torch.allclose(rows[0], rows[1], atol=1e-2)
    copy = pickle.loads(pickle.dumps(features))
    assert copy == features and torch.equal(copy(images), rows)
    assert json.loads(json.dumps(features.facts)) == features.facts
    images.requires_grad_()
    features(images)[2, :3].sum().backward()
    assert images.grad[2].abs().sum() > 0 and images.grad[[0, 1, 3, 4]].abs().sum() == 0


def test_the_seed_and_the_settings_tell_maps_apart():
    images = torch.rand(2, *SHAPE)
    for features in FIXED:
        other = replace(features, seed=1)
        assert other.facts != features.facts and not torch.allclose(other(images), features(images))


def test_several_kernels_are_the_mean_of_theirs():
    """Rahimi & Recht: products of features approximate Gaussian kernels."""
    one, other = torch.rand(2, 1, *SHAPE)
    features = RandomFourierFeatures(SHAPE, 60_000, (0.5, 2.0, 8.0), seed=0)
    squared = (one - other).square().sum()
    kernel = sum(torch.exp(-squared / (2 * scale**2)) for scale in (0.5, 2.0, 8.0)) / 3
    assert (features(one) @ features(other).T).item() == pytest.approx(kernel.item(), abs=0.02)


def test_hermite_polynomials_make_a_gaussian_kernel():
    """Mehler's formula."""
    features, pixels = HermiteFeatures((1, 1, 2), 60, 2, 0.5, seed=0), torch.rand(6, 2)
    polynomials = features._polynomials(pixels, 60)[:, 0]
    difference = pixels[:, :1] - pixels[:, 0]
    assert torch.allclose(polynomials @ polynomials.T, torch.exp(-0.5 / 0.75 * difference**2), atol=1e-5)


def test_a_stand_in_of_tangents_is_narrow():
    """A check before training asks it some twenty times, and CIFAR-10's published network has 9.2 million weights."""
    asked = MeanTangents(feature_map=TangentFeatures((3, 32, 32), 3000, seed=0))
    rows = asked.stand_in()(torch.rand(2, 3, 32, 32), None)
    assert rows.shape[1] < 200_000 and rows.norm(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-4)
    assert asked.timed() == asked.features and asked.num_values == 3000 * 3074, "of the run itself"


def test_tangent_features_are_the_gradient_of_the_network():
    features, image = TangentFeatures(SHAPE, 6, seed=0), torch.rand(1, *SHAPE)
    weights = [weight.clone().requires_grad_() for weight in features._weights]
    hidden = torch.nn.functional.layer_norm(weights[0] @ image.flatten() + weights[1], (6,)).relu()
    (weights[2] @ hidden).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in weights])
    assert torch.allclose(features(image)[0], gradient / gradient.norm(), atol=1e-6)


# The queries.


def door(images, labels, ledger):
    return SensitiveImages(
        images.numpy(), labels.numpy(), num_images=40, image_shape=SHAPE, ledger=ledger, class_names=("a", "b", "c")
    )


def noiseless(query, images, labels):
    """Asked with next to no noise."""
    ledger = PrivacyLedger(None, target_epsilon=1e30, target_delta=1e-5, num_images=40, accountant="rdp")
    return query.answer(door(images, labels, ledger), noise_multiplier=1e-6)


@pytest.mark.parametrize("kind", [MeanFeatures, SecondMoments, StoppingFeatures1, StoppingFeatures2])
def test_an_answer_is_a_sum_over_the_declared_number(kind, resnet):
    """A class keeps its weight: no count of what is there divides it. One image moves it by 1/N, whichever it is."""
    images = torch.randint(0, 256, (20, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 2
    labels[0] = 0
    query = kind(feature_map=PerceptualFeatures(resnet, SHAPE))
    answer = noiseless(query, images, labels)
    assert answer.shape == (3, query.feature_map.num_features) and answer[2].abs().max() < 1e-5
    rows = moments(query.feature_map, 2)(images / 255)[:, -answer.shape[1] :]
    if not isinstance(query, SecondMoments):
        rows = query.feature_map(images / 255)
    expected = torch.stack([rows[labels == label].sum(0) for label in range(3)]) / 40
    assert torch.allclose(answer, expected, atol=1e-5)
    assert query.clip_norm == 1.0
    moved = (answer - noiseless(query, images[1:], labels[1:])).norm() * 40
    assert moved.item() == pytest.approx(1.0, abs=1e-3), "as far as the sensitivity says, and no further"


def test_the_door_refuses_a_network_that_mixes_its_images(resnet):
    """A batch norm in training mode, as somebody else's map may have one; ours is in evaluation mode."""
    features = PerceptualFeatures(resnet, SHAPE)
    assert not any(module.training for module in features.loaded[0].modules())
    images, labels = torch.randint(0, 256, (9, *SHAPE), dtype=torch.uint8), torch.zeros(9, dtype=torch.long)
    noiseless(MeanFeatures(feature_map=features), images, labels)
    features.loaded[0].train()
    with pytest.raises(UsageError, match="no function of one image alone.*evaluation mode"):
        noiseless(MeanFeatures(feature_map=features), images, labels)


def test_zero_feature_vectors_are_an_ordinary_answer(resnet):
    """Of a network that sees nothing: no division by zero, and no gradient that is not finite."""
    features = PerceptualFeatures(resnet, SHAPE)
    with torch.no_grad():
        for weight in features.loaded[0].parameters():
            weight.zero_()
        for name, buffer in features.loaded[0].named_buffers():
            buffer.fill_(1) if "running_var" in name else buffer.zero_()
    images = torch.rand(2, *SHAPE).requires_grad_()
    rows = moments(features, 2)(images)
    rows.sum().backward()
    assert rows.abs().sum() == 0 and images.grad.isfinite().all()


# Networks of others.


def test_networks_that_cannot_be_taken_are_refused(tmp_path):
    """None, pickled weights, damaged weights, weights of which some lack; and a transformer without named layers."""
    folder = tmp_path / "network"
    save_resnet(folder)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()

    def refused(words, name=str(folder), shape=SHAPE):
        with pytest.raises(UsageError, match=words) as refusal:
            PerceptualFeatures(name, shape).num_features
        assert "\n" not in str(refusal.value)

    refused("--feature_network .*nowhere cannot be loaded", str(tmp_path / "nowhere"))
    weights.write_bytes(whole[: len(whole) // 2])
    refused("cannot be loaded")
    weights.unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused("cannot be loaded .*: give a folder or a Hub id with safetensors")
    from safetensors.torch import load, save_file

    tensors = load(whole)
    save_file({name: tensors[name] for name in list(tensors)[2:]}, weights, metadata={"format": "pt"})
    refused("lacks 2 of the network's weights")
    refused("is not a convolutional network: give --feature_layers", save_vit(tmp_path / "vit"))


def test_after_their_counts_all_classes_weigh_alike():
    """36 images of one class, 12 of another, none of a third."""
    images = torch.randint(0, 256, (48, *SHAPE), generator=torch.Generator().manual_seed(2)).byte()
    labels = torch.tensor([0] * 36 + [1] * 12)
    door = SensitiveImages(
        images.numpy(), labels.numpy(), num_images=48, image_shape=SHAPE, class_names=("a", "b", "c"),
        ledger=PrivacyLedger(None, target_epsilon=1e9, target_delta=1e-3, num_images=48, accountant="rdp"),
    )  # fmt: skip
    counts, means = ClassCounts(), MeanFeatures(feature_map=FIXED[0])
    weights = counts.answer(door, noise_multiplier=0.01)
    assert weights.shape == (3, 1) and weights[:2].flatten().tolist() == pytest.approx([16 / 36, 16 / 12], rel=0.01)
    assert weights[2] == 16, "no class is taken to have less than one image"
    answer = means.answer(door, noise_multiplier=0.01) * weights
    phi = FIXED[0](images.float() / 255)
    for label in (0, 1):
        torch.testing.assert_close(answer[label], phi[labels == label].mean(0) / 3, atol=0.01, rtol=0)
    few = counts.finish(torch.full((1, 2, 1), -5.0), 48, 10.0)
    torch.testing.assert_close(few, torch.full((2, 1), 24 / 30))
