# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Inception-v3 as FID takes it (Heusel et al. 2017), with the names of the parameters in pytorch-fid's file.

As in TensorFlow's graph of 2015-12-05, averages leave out the border, the last block takes a maximum instead, and
there are 1008 classes."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


SIDE = 299  # pixels
NUM_LOGITS = 1008
ONE, THREE, FIVE = (((side, side),) for side in (1, 3, 5))
ROW, COLUMN, SPLIT = ((1, 7),), ((7, 1),), ((1, 3), (3, 1))

average = partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False)
maximum = partial(F.max_pool2d, kernel_size=3, stride=1, padding=1)
halve = partial(F.max_pool2d, kernel_size=3, stride=2)


class Layer(NamedTuple):
    """Convolutions beside each other, one for each kernel, concatenated.

    Args:
        outputs (`int`): Channels of each.
        kernels (`tuple`): Height and width of each kernel.
        stride (`int`, defaults to 1): Stride of all.
    """

    outputs: int
    kernels: tuple[tuple[int, int], ...] = ONE
    stride: int = 1


Branches = dict[str, list[Layer]]


class Convolution(nn.Module):
    """A convolution, normalised by stored moments and rectified. With a stride of 2 it takes no border."""

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int], stride: int = 1, border: bool = True):
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2) if border and stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Branches beside each other, concatenated: chains of layers, and a pooling.

    Args:
        inputs (`int`): Channels of the input.
        branches (`dict[str, list[Layer]]`): Layers by the name of their branch.
        pool (`Callable`): Pooling.
        pooled (`int`, defaults to 0): Channels of the convolution after the pooling; 0: there is none.
    """

    def __init__(self, inputs: int, branches: Branches, pool: partial[torch.Tensor], pooled: int = 0):
        super().__init__()
        self.pool, self.outputs = pool, pooled or inputs
        self.chains: list[list[list[str]]] = []  # names of the convolutions of each layer
        for branch, layers in branches.items():
            channels, chain = inputs, []
            for place, layer in enumerate(layers, start=1):
                name = branch if len(layers) == 1 else f"{branch}_{place}"
                beside = [name] if len(layer.kernels) == 1 else [name + "a", name + "b"]
                for each, kernel in zip(beside, layer.kernels, strict=True):
                    self.add_module(each, Convolution(channels, layer.outputs, kernel, layer.stride))
                channels = layer.outputs * len(beside)
                chain.append(beside)
            self.chains.append(chain)
            self.outputs += channels
        self.branch_pool = Convolution(inputs, pooled, (1, 1)) if pooled else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for chain in self.chains:
            h = x
            for beside in chain:
                h = torch.cat([self.get_submodule(name)(h) for name in beside], dim=1)
            found.append(h)
        return torch.cat([*found, self.branch_pool(self.pool(x))], dim=1)


def _fine(inputs: int, pooled: int) -> Mixed:
    branches = {
        "branch1x1": [Layer(64)], "branch5x5": [Layer(48), Layer(64, FIVE)],
        "branch3x3dbl": [Layer(64), Layer(96, THREE), Layer(96, THREE)],
    }  # fmt: skip
    return Mixed(inputs, branches, average, pooled)


def _middle(c: int) -> Mixed:
    branches = {
        "branch1x1": [Layer(192)], "branch7x7": [Layer(c), Layer(c, ROW), Layer(192, COLUMN)],
        "branch7x7dbl": [Layer(c), Layer(c, COLUMN), Layer(c, ROW), Layer(c, COLUMN), Layer(192, ROW)],
    }  # fmt: skip
    return Mixed(768, branches, average, 192)


def _coarse(inputs: int, pool: partial[torch.Tensor]) -> Mixed:
    branches = {
        "branch1x1": [Layer(320)], "branch3x3": [Layer(384), Layer(384, SPLIT)],
        "branch3x3dbl": [Layer(448), Layer(384, THREE), Layer(384, SPLIT)],
    }  # fmt: skip
    return Mixed(inputs, branches, pool, 192)


class InceptionV3(nn.Module):
    """The network of Szegedy et al. 2016 (*Rethinking the Inception Architecture*), called as StyleGAN2-ADA's
    TorchScript is."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, 32, (3, 3), stride=2)
        self.Conv2d_2a_3x3 = Convolution(32, 32, (3, 3), border=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, (3, 3))
        self.Conv2d_3b_1x1 = Convolution(64, 80, (1, 1))
        self.Conv2d_4a_3x3 = Convolution(80, 192, (3, 3), border=False)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _fine(192, 32), _fine(256, 64), _fine(288, 64)
        double = [Layer(64), Layer(96, THREE), Layer(96, THREE, 2)]
        self.Mixed_6a = Mixed(288, {"branch3x3": [Layer(384, THREE, 2)], "branch3x3dbl": double}, halve)
        self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e = map(_middle, (128, 160, 160, 192))
        single = [Layer(192), Layer(320, THREE, 2)]
        double = [Layer(192), Layer(192, ROW), Layer(192, COLUMN), Layer(192, THREE, 2)]
        self.Mixed_7a = Mixed(768, {"branch3x3": single, "branch7x7x3": double}, halve)
        self.Mixed_7b, self.Mixed_7c = _coarse(1280, average), _coarse(2048, maximum)
        self.fc = nn.Linear(2048, NUM_LOGITS)

    def forward(self, images: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        """Maps images `[n, 3, H, W]`, uint8, to probabilities `[n, 1008]`, or to features `[n, 2048]` of the last
        pooling."""
        x = F.interpolate(images.float() / 255, (SIDE, SIDE), mode="bilinear", align_corners=False)
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(2 * x - 1)))
        x = halve(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(halve(x))))
        for name, block in self.named_children():
            x = block(x) if name.startswith("Mixed") else x
        features = x.mean(dim=(2, 3))
        return features if return_features else self.fc(features).softmax(dim=1)
