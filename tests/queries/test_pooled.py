# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What public networks see: their pooled outputs, of images as their own image processors bring them to size."""

import json

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    BitImageProcessorPil,
    CLIPImageProcessorPil,
    ConvNextImageProcessorPil,
    SiglipImageProcessorPil,
    ViTImageProcessorPil,
)

from diffusers_dp.errors import UsageError
from diffusers_dp.queries.perceptual import PREPROCESSOR, processor_of
from diffusers_dp.queries.pooled import PooledFeatures, fit_of
from support.feature_networks import save_clip, save_dinov2, save_resnet, save_siglip, save_vit


NETWORKS = {"clip": (save_clip, 6), "siglip": (save_siglip, 8), "dinov2": (save_dinov2, 8), "vit": (save_vit, 8),
            "resnet": (save_resnet, 8)}  # fmt: skip
#: As their repositories have them, at a fourteenth of the size.
PROCESSORS = {
    "clip": CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
    "dinov2": BitImageProcessorPil(
        size={"shortest_edge": 18}, crop_size={"height": 16, "width": 16}, do_center_crop=True, resample=3
    ),
    "siglip": SiglipImageProcessorPil(size={"height": 16, "width": 16}, resample=3),
    "vit": ViTImageProcessorPil(size={"height": 16, "width": 16}, resample=2),
    "convnext": ConvNextImageProcessorPil(size={"shortest_edge": 16}, crop_pct=0.875, resample=3),
}
SHAPE = (3, 40, 40)


def images(count=4, shape=SHAPE):
    smooth = torch.rand(count, shape[0], 5, 5, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(smooth, shape[1:], mode="bicubic").clamp(0, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_its_pooled_output(name, tmp_path):
    """Of CLIP the embedding that is compared with texts; of grey images, too; each image by itself."""
    save, width = NETWORKS[name]
    folder = save(tmp_path / name)
    features = PooledFeatures(folder, SHAPE, flag="embedding_network")
    rows = features(images())
    assert rows.shape == (4, width) and rows.norm(dim=1).tolist() == pytest.approx([1] * 4, abs=1e-5)
    assert features.num_features == width and json.loads(json.dumps(features.facts)) == features.facts
    assert features.facts["resolution"] == (None if name == "resnet" else [16, 16, "bilinear"])
    network = AutoModel.from_pretrained(folder).eval()
    see = getattr(network, "get_image_features", network)
    with torch.no_grad():
        seen = see(pixel_values=features.resized(images()) * 2 - 1).pooler_output.flatten(1)
    torch.testing.assert_close(rows, seen / seen.norm(dim=1, keepdim=True))
    assert PooledFeatures(folder, (1, 24, 24))(images(2, (1, 24, 24))).shape == (2, width)
    torch.testing.assert_close(torch.cat([features(image) for image in images().split(1)]), rows)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("sides", [(40, 40), (30, 50), (12, 12)])
def test_images_are_brought_to_size_as_its_image_processor_does(name, sides, tmp_path):
    processor, folder = PROCESSORS[name], tmp_path / "network"
    save_vit(folder)
    processor.save_pretrained(folder)
    pictures = (images(2, (3, *sides)) * 255).round()
    wanted = processor(list(pictures.byte().numpy().transpose(0, 2, 3, 1)), return_tensors="pt")["pixel_values"]
    features = PooledFeatures(str(folder), (3, *sides))
    if name in ("siglip", "vit") and sides[0] != sides[1]:  # which squeeze what is not square
        assert features.resized(pictures / 255).shape == wanted.shape
        return
    _, _, mean, std = features.loaded
    found = (features.resized(pictures / 255) - mean) / std
    assert found.shape == wanted.shape and (found - wanted).abs().max() < 0.05, "levels are rounded there"


def test_what_processors_say():
    """Of CLIP, DINOv2, ResNet and timm; what is no size changes nothing."""
    assert fit_of({"size": 224, "crop_size": 224, "resample": 3}) == (224, 224, "bicubic")
    assert fit_of({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}) == (
        256,
        224,
        "bilinear",
    )
    assert fit_of({"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}) == (256, 224, "bicubic")
    assert fit_of({"size": [3, 224, 224], "crop_pct": 0.9, "resample": "bicubic"}) == (248, 224, "bicubic")
    assert fit_of({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": False}) == (
        256,
        256,
        "bilinear",
    )
    for said in (
        {},
        {"size": None},
        {"size": 10**9},
        {"size": "224"},
        {"size": {}},
        {"size": 224, "do_resize": False},
    ):
        assert fit_of(said) is None


def test_what_timm_says_is_put_into_words_of_transformers(tmp_path):
    class Config:
        pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.5] * 3, "input_size": [3, 64, 64], "crop_pct": 1.0}

    said = processor_of(save_vit(tmp_path / "network"), Config())
    assert said["image_mean"] == [0.1, 0.2, 0.3] and fit_of(said) == (64, 64, "bilinear")
    (tmp_path / "network" / PREPROCESSOR).write_text("[1, 2]")
    assert processor_of(str(tmp_path / "network"), Config()) == said, "no object"


def test_a_network_without_a_pooled_output_is_refused(tmp_path, monkeypatch):
    features = PooledFeatures(save_vit(tmp_path / "network"), SHAPE, flag="embedding_network")
    monkeypatch.setattr(PooledFeatures, "outputs", lambda self, images: np.zeros(1))
    with pytest.raises(UsageError, match="--embedding_network .*pooler_output.* or another network"):
        assert features.num_features
