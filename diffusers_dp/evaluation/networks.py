# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The networks of the downstream classifiers, from images `[B, C, H, W]` in [-1, 1] to logits `[B, classes]`, and
their training.

The three residual families end in a mean over all positions, so they accept any size from 28 to 128 pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


CNN_WIDTH = 32
# Smallest side in pixels for which the unpadded convolutions of the small CNN have positions left.
SMALLEST_UNPADDED = 18
SMALLEST_SIDE = 8


class SmallCNN(nn.Sequential):
    """The CNN classifier of DPDM (Dockhorn et al. 2022, downstream classifiers; also in DP-FETA, Appendix B.5).

    It has three unpadded 3x3 convolutions of 32, 64 and 128 channels, the first two with 2x2 max pooling, then 128
    hidden units; dropout of 1/2 follows each pooling and the hidden units. Convolutions are padded for images below 18
    pixels a side.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W), at least 8 pixels a side.
        num_classes (`int`): Number of logits.
        width (`int`, defaults to 32): Channels of the first convolution; 32 is the published one.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, width: int = CNN_WIDTH):
        channels, *sides = image_shape
        padding = 0 if min(sides) >= SMALLEST_UNPADDED else 1
        lost = 2 - 2 * padding  # pixels that a convolution removes from a side
        height, width_left = [((side - lost) // 2 - lost) // 2 - lost for side in sides]
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5),
            nn.Conv2d(width, 2 * width, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5),
            nn.Conv2d(2 * width, 4 * width, 3, padding=padding), nn.ReLU(), nn.Flatten(),
            nn.Linear(4 * width * height * width_left, 4 * width), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(4 * width, num_classes),
        )  # fmt: skip


class _WideBlock(nn.Module):
    """Normalises, activates and convolves twice, with dropout between. A projection of the activated input changes
    width or stride."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1, self.conv2 = _conv(inputs, outputs, 3, stride), _conv(outputs, outputs, 3)
        self.dropout = nn.Dropout(dropout)
        self.projection = _conv(inputs, outputs, 1, stride) if inputs != outputs or stride != 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = F.relu(self.norm1(x))
        residual = x if self.projection is None else self.projection(activated)
        return residual + self.conv2(self.dropout(F.relu(self.norm2(self.conv1(activated)))))


class WideResNet(nn.Module):
    """WRN-depth-widen (Zagoruyko & Komodakis 2016, Table 1): stages of 16k, 32k and 64k channels of pre-activated
    blocks.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`): Number of logits.
        depth (`int`): Depth 6n + 4, with n blocks per stage.
        widen (`int`): Widening factor k.
        dropout (`float`, defaults to 0.3): Dropout between the convolutions of a block, as in DPImageBench.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], num_classes: int, depth: int, widen: int, dropout: float = 0.3
    ):
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = _conv(image_shape[0], widths[0], 3)
        self.stages = _stages(
            widths, (depth - 4) // 6, lambda inputs, outputs, stride: _WideBlock(inputs, outputs, stride, dropout)
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], num_classes)
        _initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.stages(self.stem(x)))).mean((2, 3)))


class _Residual(nn.Module):
    """An activated sum of a path and the input, which is projected if width or stride changes."""

    def __init__(self, path: nn.Module, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.path = path
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


def basic_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Two convolutions (He et al. 2016, Section 4.2). DPImageBench's ResNet-164 also has these blocks, not
    bottlenecks."""
    path = nn.Sequential(_conv_norm(inputs, outputs, 3, stride), nn.ReLU(), _conv_norm(outputs, outputs, 3))
    return _Residual(path, inputs, outputs, stride)


def bottleneck(inputs: int, outputs: int, stride: int, *, groups: int, widen: int) -> nn.Module:
    """A bottleneck whose middle convolution has `outputs / widen` channels in each of `groups` groups, the paper's
    cardinality (Xie et al. 2017, Section 5.3)."""
    middle = groups * outputs // widen
    path = nn.Sequential(
        _conv_norm(inputs, middle, 1), nn.ReLU(),
        _conv_norm(middle, middle, 3, stride, groups), nn.ReLU(),
        _conv_norm(middle, outputs, 1),
    )  # fmt: skip
    return _Residual(path, inputs, outputs, stride)


class ResNet(nn.Module):
    """ResNet or ResNeXt for small images: a convolution, and three stages of blocks.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`): Number of logits.
        widths (`list[int]`): Channels of the first convolution and of each stage.
        blocks (`int`): Blocks of each stage.
        block (`Callable`): Builds a block of inputs, outputs and stride.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], num_classes: int, widths: list[int], blocks: int,
        block: Callable[[int, int, int], nn.Module],
    ):  # fmt: skip
        super().__init__()
        self.stem = _conv_norm(image_shape[0], widths[0], 3)
        self.stages = _stages(widths, blocks, block)
        self.head = nn.Linear(widths[-1], num_classes)
        _initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(F.relu(self.stem(x))).mean((2, 3)))


def build_network(name: str, image_shape: tuple[int, int, int], num_classes: int, *, cifar: bool = False) -> nn.Module:
    """Builds the network of DPImageBench (`wrn`, `resnet`, `resnext`) or DPDM (`cnn`) with a name.

    Args:
        name (`str`): `cnn`, `wrn`, `resnet` or `resnext`.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`): Number of logits.
        cifar (`bool`, defaults to `False`): Whether to build the larger networks published for CIFAR-10 and CIFAR-100.

    Raises:
        ValueError: Images have less than 8 pixels a side.
    """
    if min(image_shape[1:]) < SMALLEST_SIDE:
        raise ValueError(f"Images must have at least {SMALLEST_SIDE} pixels a side, not {image_shape[1:]}.")
    if name == "cnn":
        return SmallCNN(image_shape, num_classes)
    if name == "wrn":
        return WideResNet(image_shape, num_classes, *((28, 10) if cifar else (40, 4)))
    if name == "resnet":  # of depth 164 or 110, 6 blocks + 2
        return ResNet(image_shape, num_classes, [16, 16, 32, 64], 27 if cifar else 18, basic_block)
    # Of depth 9 blocks + 2, rounded down: DPImageBench's "ResNeXt-28" has 2 blocks.
    widen, blocks = (10, 2) if cifar else (4, 3)
    block = partial(bottleneck, groups=8, widen=widen)
    return ResNet(image_shape, num_classes, [64, 64 * widen, 128 * widen, 256 * widen], blocks, block)


@dataclass(frozen=True)
class Training:
    """Training settings of a network.

    Args:
        optimizer (`str`): `adam` or `sgd`.
        learning_rate (`float`): Initial learning rate.
        epochs (`int`): Number of passes over the training images.
        batch_size (`int`): Number of images per step.
        momentum, weight_decay (`float`, default to 0): Parameters of SGD.
        step_epochs (`int`, *optional*): Number of epochs after which, each time, the learning rate is multiplied by
            `step_factor`.
        step_factor (`float`, defaults to 0.2): Factor of the learning rate.
        ema_decay (`float`, defaults to 0.9999): Decay of the averaged weights, which are the result; after n steps it
            is `min(ema_decay, (1 + n) / (10 + n))`. The buffers of BatchNorm are not averaged.
        micro_batches (`int`, defaults to 1): Number of parts of a batch, each with its own BatchNorm statistics.
        fewest_steps (`int`, defaults to 0): Minimum number of steps; small sets of images get more epochs.
    """

    optimizer: str
    learning_rate: float
    epochs: int
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    step_epochs: int | None = None
    step_factor: float = 0.2
    ema_decay: float = 0.9999
    micro_batches: int = 1
    fewest_steps: int = 0

    def with_epochs(self, epochs: int) -> "Training":
        """Returns the settings with exactly this number of epochs; `step_epochs` changes in proportion."""
        step_epochs = self.step_epochs and max(1, round(self.step_epochs * epochs / self.epochs))
        return replace(self, epochs=epochs, step_epochs=step_epochs, fewest_steps=0)


# DPImageBench's settings for grey images, CelebA, Camelyon and EuroSAT, then for CIFAR-10 and CIFAR-100.
BENCHMARK_TRAINING = Training("adam", 0.01, epochs=50, batch_size=256, step_epochs=20)
# The published runs used a batch size of 126.
CIFAR_TRAINING = Training("sgd", 0.1, epochs=200, batch_size=126, momentum=0.9, weight_decay=5e-4, step_epochs=60)
MICRO_BATCHES = {64: 16, 128: 64}  # by the smallest side to which they apply
# Our settings; DPDM trains its CNN for 50 epochs at 3e-4 with batch size 128. Ours take minutes on two CPU cores.
CNN_TRAINING = Training("adam", 2e-3, epochs=8, batch_size=128, step_epochs=4, fewest_steps=1000)


def training_of(
    name: str, image_shape: tuple[int, int, int], epochs: int | None = None, *, cifar: bool = False
) -> Training:
    """Returns the training settings of a network.

    Args:
        name, image_shape, cifar: See `build_network`. From a side of 64 pixels, batches pass DPImageBench's networks
            in parts.
        epochs (`int`, *optional*): Number of epochs instead of the published one.
    """
    if name == "cnn":
        training = CNN_TRAINING
    else:
        parts = [number for side, number in MICRO_BATCHES.items() if image_shape[1] >= side]
        training = replace(CIFAR_TRAINING if cifar else BENCHMARK_TRAINING, micro_batches=max(parts, default=1))
    return training if epochs is None else training.with_epochs(epochs)


def _stages(widths: list[int], blocks: int, block: Callable[[int, int, int], nn.Module]) -> nn.Sequential:
    """Builds three stages; the second and the third halve the side."""
    layers = []
    for inputs, outputs, stride in zip(widths[:-1], widths[1:], (1, 2, 2), strict=True):
        layers += [block(inputs, outputs, stride)] + [block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(*layers)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)


def _conv_norm(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs, size, stride, groups), nn.BatchNorm2d(outputs))


def _initialise(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
