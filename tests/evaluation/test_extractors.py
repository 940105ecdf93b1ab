# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Loading and preprocessing, on tiny random networks made on the spot; the true weights are not tested here."""

import hashlib
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation import extractors
from diffusers_dp.evaluation.classifier_features import ClassifierExtractor
from diffusers_dp.evaluation.extractors import (
    INCEPTION_NAME,
    EfficientNetExtractor,
    InceptionExtractor,
)
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.queries.efficientnet import WEIGHTS_SHA256, EfficientNetFeatures


def random_images(count=5, channels=3, size=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=np.uint8)


class TinyInception(nn.Module):
    """Called as the published TorchScript is; its features are the means of the channels and their weighted sum."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(3, 4)

    def forward(
        self, img: torch.Tensor, return_features: bool = False, use_fp16: bool = False, no_output_bias: bool = False
    ) -> torch.Tensor:
        features = img.to(torch.float32).mean(dim=[2, 3]) / 255
        if return_features:
            return features
        weights = self.output.weight
        logits = torch.matmul(features, weights.t()) if no_output_bias else self.output(features)
        return torch.softmax(logits, dim=1)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The file among torch's downloads, and the network in it."""
    torch.manual_seed(0)
    network = TinyInception()
    path = tmp_path / "checkpoints" / INCEPTION_NAME
    path.parent.mkdir()
    torch.jit.script(network).save(str(path))
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", sha256(path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    return path, network


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class TestInception:
    def test_features_and_probabilities_are_the_networks(self, tiny):
        _, network = tiny
        extractor = InceptionExtractor(batch_size=2)
        assert extractor.frechet_name == "FID" and extractor.facts["dimension"] == 3
        images = random_images()
        features = extractor(images)
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, images.mean(axis=(2, 3)) / 255, rtol=1e-5)
        with torch.no_grad():
            expected = torch.softmax(network.output(torch.from_numpy(features)), dim=1)  # with the bias
        np.testing.assert_allclose(extractor.probabilities(images), expected, rtol=1e-5)

    def test_a_damaged_file_is_refused_before_it_is_loaded(self, tiny, monkeypatch):
        path, _ = tiny
        monkeypatch.setattr(torch.jit, "load", lambda *args, **kwargs: pytest.fail("loaded"))
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        with pytest.raises(UsageError, match="is damaged or another file"):
            InceptionExtractor()

    def test_what_is_downloaded_is_checked_and_kept(self, tiny, tmp_path, monkeypatch):
        path, _ = tiny
        calls, content = [], path.read_bytes()
        path.unlink()

        def download(url, destination, hash_prefix):
            calls.append(hash_prefix)
            with open(destination, "wb") as file:
                file.write(content)

        monkeypatch.setattr(torch.hub, "download_url_to_file", download)
        for _ in range(2):
            InceptionExtractor()
        assert calls == [sha256(path)]


@pytest.mark.skipif(not EfficientNetFeatures(()).is_here, reason="no network is installed: diffusers_dp[features]")
def test_the_network_from_pip_sees_each_image_by_itself_and_is_no_fid():
    extractor = EfficientNetExtractor()
    images = random_images(70)
    features = extractor(images)
    assert features.shape == (70, extractor.facts["dimension"]) == (70, 1280) and features.dtype == np.float32
    np.testing.assert_allclose(extractor(images[66:]), features[66:], atol=1e-4)
    np.testing.assert_allclose(extractor(images[:, :1]), extractor(images[:, :1].repeat(3, 1)), atol=1e-4)
    assert "FID" not in extractor.frechet_name and extractor.facts["weights_sha256"] == WEIGHTS_SHA256
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(extractor))(images), features)


def striped(count, seed=0):
    """Class 0 has bright rows, class 1 bright columns."""
    labels = np.arange(count) % 2
    images = random_images(count, channels=1, seed=seed) // 4
    images[labels == 0, :, ::2] += 150
    images[labels == 1, :, :, ::2] += 150
    return ImageSet(images, labels, ("rows", "columns", "never"))


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffusers_dp.evaluation.classifier_features.STEPS", 40)
        return ClassifierExtractor(striped(100))


class TestClassifier:
    def test_it_learns_and_gives_penultimate_features(self, fitted):
        other = striped(40, seed=1)
        probabilities = fitted.probabilities(other.images)
        assert probabilities.shape == (40, 3)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert (probabilities.argmax(axis=1) == other.labels).all()
        features = fitted(other.images)
        assert features.shape == (40, 128) and features.dtype == np.float32
        with torch.no_grad():
            logits = fitted._network.classes(torch.from_numpy(features))
        np.testing.assert_allclose(logits.softmax(dim=1), probabilities, rtol=1e-4, atol=1e-6)

    def test_the_seed_decides_and_others_draws_are_left_alone(self, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.classifier_features.STEPS", 3)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        hashes = [ClassifierExtractor(striped(20), seed=seed).facts["weights_sha256"] for seed in (0, 0, 1)]
        assert hashes[0] == hashes[1] != hashes[2]
        assert torch.equal(before, torch.get_rng_state())
