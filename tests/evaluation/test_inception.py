# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The network of pytorch-fid's file, against a program of its own, on random weights. The true weights are not tested
here: their file cannot be fetched by a test."""

import hashlib
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation import extractors
from diffusers_dp.evaluation.extractors import InceptionExtractor
from diffusers_dp.evaluation.inception import InceptionV3
from support.evaluating import refused


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    state = InceptionV3().state_dict()
    for name, value in state.items():
        if name.endswith(("running_var", "bn.weight")):
            value.uniform_(0.5, 2)
        elif name.endswith(("running_mean", "bn.bias")):
            value.normal_(0, 0.1)
    return state


@pytest.fixture
def file(state, tmp_path, monkeypatch):
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    monkeypatch.setattr(extractors, "PYTORCH_FID_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


@pytest.mark.parametrize(
    "name, shape",
    [
        ("Conv2d_1a_3x3.conv.weight", (32, 3, 3, 3)), ("Conv2d_4a_3x3.bn.running_var", (192,)),
        ("Mixed_5b.branch1x1.conv.weight", (64, 192, 1, 1)), ("Mixed_5c.branch5x5_2.conv.weight", (64, 48, 5, 5)),
        ("Mixed_5d.branch_pool.conv.weight", (64, 288, 1, 1)), ("Mixed_6a.branch3x3.bn.bias", (384,)),
        ("Mixed_6b.branch7x7_2.conv.weight", (128, 128, 1, 7)), ("Mixed_6c.branch7x7_3.conv.weight", (192, 160, 7, 1)),
        ("Mixed_6e.branch7x7dbl_5.conv.weight", (192, 192, 1, 7)),
        ("Mixed_7a.branch7x7x3_4.conv.weight", (192, 192, 3, 3)),
        ("Mixed_7b.branch3x3_2a.conv.weight", (384, 384, 1, 3)),
        ("Mixed_7c.branch3x3dbl_3b.conv.weight", (384, 384, 3, 1)), ("fc.weight", (1008, 2048)), ("fc.bias", (1008,)),
    ],
)  # fmt: skip
def test_parameters_have_the_names_and_shapes_of_pytorch_fids_file(state, name, shape):
    """94 convolutions with five tensors each and the number of batches, and the last layer: 95,541,944 bytes of the
    file's 95,628,359, the rest are names."""
    assert state[name].shape == shape
    assert len(state) == 94 * 6 + 2 and sum(value.numel() for value in state.values()) * 4 == 95_541_944


def by_hand(state, images):
    """Features and probabilities of images `[n, 3, H, W]`, uint8, in float64, by the weights' names."""

    def conv(x, name, padding=0, stride=1):
        x = F.conv2d(x, state[f"{name}.conv.weight"].double(), None, stride, padding)
        mean, var, scale, shift = (
            state[f"{name}.bn.{each}"].double()[:, None, None]
            for each in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 0.001).sqrt() * scale + shift).clamp(min=0)

    def average(x):
        inside = F.avg_pool2d(torch.ones_like(x), 3, 1, 1)
        return F.avg_pool2d(x, 3, 1, 1) / inside

    x = F.interpolate(images.double() / 255, (299, 299), mode="bilinear", align_corners=False) * 2 - 1
    x = conv(conv(x, "Conv2d_1a_3x3", stride=2), "Conv2d_2a_3x3")
    x = F.max_pool2d(conv(x, "Conv2d_2b_3x3", 1), 3, 2)
    x = F.max_pool2d(conv(conv(x, "Conv2d_3b_1x1"), "Conv2d_4a_3x3"), 3, 2)
    for m in ("Mixed_5b", "Mixed_5c", "Mixed_5d"):
        five = conv(conv(x, f"{m}.branch5x5_1"), f"{m}.branch5x5_2", 2)
        double = conv(conv(conv(x, f"{m}.branch3x3dbl_1"), f"{m}.branch3x3dbl_2", 1), f"{m}.branch3x3dbl_3", 1)
        x = torch.cat([conv(x, f"{m}.branch1x1"), five, double, conv(average(x), f"{m}.branch_pool")], 1)
    m = "Mixed_6a"
    double = conv(conv(x, f"{m}.branch3x3dbl_1"), f"{m}.branch3x3dbl_2", 1)
    double = conv(double, f"{m}.branch3x3dbl_3", stride=2)
    x = torch.cat([conv(x, f"{m}.branch3x3", stride=2), double, F.max_pool2d(x, 3, 2)], 1)
    row, column = (0, 3), (3, 0)
    for m in ("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
        single = conv(conv(conv(x, f"{m}.branch7x7_1"), f"{m}.branch7x7_2", row), f"{m}.branch7x7_3", column)
        double = conv(x, f"{m}.branch7x7dbl_1")
        for i, padding in enumerate((column, row, column, row), start=2):
            double = conv(double, f"{m}.branch7x7dbl_{i}", padding)
        x = torch.cat([conv(x, f"{m}.branch1x1"), single, double, conv(average(x), f"{m}.branch_pool")], 1)
    m = "Mixed_7a"
    three = conv(conv(x, f"{m}.branch3x3_1"), f"{m}.branch3x3_2", stride=2)
    seven = conv(conv(conv(x, f"{m}.branch7x7x3_1"), f"{m}.branch7x7x3_2", row), f"{m}.branch7x7x3_3", column)
    x = torch.cat([three, conv(seven, f"{m}.branch7x7x3_4", stride=2), F.max_pool2d(x, 3, 2)], 1)
    for m, pooled in (("Mixed_7b", average), ("Mixed_7c", lambda x: F.max_pool2d(x, 3, 1, 1))):
        three = conv(x, f"{m}.branch3x3_1")
        double = conv(conv(x, f"{m}.branch3x3dbl_1"), f"{m}.branch3x3dbl_2", 1)
        split = [
            conv(h, f"{m}.{name}{end}", padding)
            for h, name in ((three, "branch3x3_2"), (double, "branch3x3dbl_3"))
            for end, padding in (("a", (0, 1)), ("b", (1, 0)))
        ]
        x = torch.cat([conv(x, f"{m}.branch1x1"), *split, conv(pooled(x), f"{m}.branch_pool")], 1)
    features = x.mean((2, 3))
    logits = features @ state["fc.weight"].double().T + state["fc.bias"].double()
    return features.numpy(), logits.softmax(1).numpy()


def test_the_network_is_the_published_one(file, state):
    images = np.random.default_rng(0).integers(0, 256, (1, 1, 32, 32), dtype=np.uint8)
    extractor = InceptionExtractor(file)
    expected, classes = by_hand(state, torch.from_numpy(images.repeat(3, axis=1)))
    assert expected.std() > 1e-3
    np.testing.assert_allclose(extractor(images), expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(extractor.probabilities(images), classes, rtol=1e-3)
    assert extractor.frechet_name == "FID" and extractor.facts["dimension"] == 2048
    assert extractor.facts["weights"] == extractors.PYTORCH_FID_NAME
    load, given = extractor.__reduce__()  # as another process gets it
    assert load is extractors._loaded_once and given == (file, "cpu", 64)


def test_another_file_is_refused_before_it_is_loaded(file, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *args, **options: pytest.fail("loaded"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match="weights.pth is damaged or another file .* by --inception_weights"):
        InceptionExtractor(file)
    with pytest.raises(UsageError, match=r"could not be .* read .*pt_inception-2015-12-05-6726825d.pth"):
        InceptionExtractor(file.parent / "missing.pth")


def test_a_file_runs_no_code(file, monkeypatch):
    torch.save(torch.nn.Linear(1, 1), file)
    monkeypatch.setattr(extractors, "PYTORCH_FID_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        InceptionExtractor(file)


def test_the_hash_begins_with_the_digits_in_the_files_name():
    assert extractors.PYTORCH_FID_NAME == f"pt_inception-2015-12-05-{extractors.PYTORCH_FID_SHA256[:8]}.pth"


def test_the_flag_is_of_that_extractor(capsys, tmp_path):
    said = refused(capsys, "--images", tmp_path, "--inception_weights", "x.pth", "--extractors", "pixels")
    assert "--inception_weights is the network of --extractors inception" in said
