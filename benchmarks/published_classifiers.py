# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The classifiers of Ghalebikesabi et al. 2023 with the values of its Tables 4, 5 and 6, one JSON line for each.

    python benchmarks/published_classifiers.py drawn mnist --images runs/drawn --real ylecun/mnist
    python benchmarks/published_classifiers.py grid wrn --images runs/drawn --real uoft-cs/cifar10
    python benchmarks/published_classifiers.py private mnist --images ylecun/mnist --real ylecun/mnist

`drawn` is Table 4: a WRN-40-4 learns drawn images. `grid` is Table 6: each learning rate with each weight decay.
`private` is Table 5: DP-SGD on the sensitive images `--images`, until epsilon is 10, with a ledger in memory. All are
tested on `--real`. `--steps` shortens them. No classifier starts from ImageNet32, as those of Camelyon17 did. Colour
changes brightness and contrast by up to a fifth and a cosine ends at 0: the paper says neither. `private` counts the
images that can be read, so it is for public data sets alone.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers.training_utils import EMAModel
from torch import nn

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.evaluation.classifiers import network_scores
from diffusers_dp.evaluation.images import ImageSet, Source
from diffusers_dp.evaluation.networks import WideResNet
from diffusers_dp.mechanisms import sampled
from diffusers_dp.models.private_set import classification_loss
from diffusers_dp.models.row_augmentation import AugmentedLoss


@dataclass(frozen=True)
class Values:
    """A column of a table. `copies` of an image are augmented in a step; its `changes` are crop, flip and color."""

    learning_rate: float
    batch_size: int
    steps: int = 15_000
    network: str = "wrn"
    depth: int = 40
    dropout: float = 0.0
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    cosine: bool = True
    copies: int = 1
    changes: tuple[str, ...] = ()
    noise_multiplier: float = 0.0


ALL = ("crop", "flip", "color")
TABLE_4 = {
    "mnist": Values(0.1, 64, 10_000, dropout=0.5, weight_decay=5e-4, label_smoothing=0.05, changes=("crop",)),
    "cifar10": Values(0.1, 4_096, 20_000, weight_decay=5e-4, copies=16, changes=ALL),
    "camelyon": Values(1e-4, 512, 4_000, weight_decay=1e-5, cosine=False, copies=16, changes=ALL),
}
TABLE_5 = {
    "mnist": Values(4.0, 16_384, depth=16, momentum=0.0, nesterov=False, cosine=False, noise_multiplier=3.0),
    "camelyon": Values(
        0.5, 4_096, momentum=0.0, nesterov=False, cosine=False, copies=16, changes=ALL, noise_multiplier=4.0
    ),
}
BOTH = {"copies": 16, "changes": ("flip", "crop")}
GRIDS = {  # values, learning rates, weight decays
    "resnet50": (Values(0, 128, network="resnet50", label_smoothing=0.05, momentum=0.0, nesterov=False, **BOTH),
                 (5e-4, 2e-3, 4e-3), (0.0, 0.1, 0.01)),
    "vgg": (Values(0, 128, network="vgg", nesterov=False, cosine=False),
            (0.07, 0.04, 0.025, 0.01, 5e-3), (0.0, 1e-3, 5e-3)),
    "wrn": (Values(0, 128, depth=16, nesterov=False, **BOTH), (0.01, 0.02, 0.03), (0.0, 0.1, 0.01)),
}  # fmt: skip
EMA_DECAY, MAX_GRAD_NORM, EPSILON, DELTA, PHYSICAL = 0.9999, 1.0, 10.0, 1e-5, 16
VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)  # VGG-16; 0 halves the side


class Logits(nn.Module):
    """A network of transformers as one of images alone."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images).logits


def build(values: Values, images: ImageSet) -> nn.Module:
    """The untrained network for these images."""
    channels, num_classes = images.images.shape[1], len(images.class_names)
    if values.network == "wrn":
        return WideResNet(images.images.shape[1:], num_classes, values.depth, 4, values.dropout)
    if values.network == "resnet50":
        from transformers import ResNetConfig, ResNetForImageClassification

        return Logits(ResNetForImageClassification(ResNetConfig(num_channels=channels, num_labels=num_classes)))
    layers: list[nn.Module] = []
    for width in VGG:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        else:
            layers.append(nn.MaxPool2d(2))
        channels = width or channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(VGG[-1], num_classes))


def without_batch_norm(network: nn.Module) -> nn.Module:
    """The same with groups of 16 channels in its place, as De et al. 2022 have it for DP-SGD."""
    for name, layer in network.named_children():
        if isinstance(layer, nn.BatchNorm2d):
            setattr(network, name, nn.GroupNorm(layer.num_features // 16, layer.num_features))
        else:
            without_batch_norm(layer)
    return network


def changed(images: torch.Tensor, changes: Sequence[str]) -> torch.Tensor:
    """Each of the images `[rows, C, H, W]` in [-1, 1], flipped, shifted and coloured independently."""
    images = AugmentedLoss(None, changes).augment(images)
    if "color" not in changes:
        return images
    light, contrast = (0.8 + 0.4 * torch.rand(2, len(images), 1, 1, 1, device=images.device)).unbind()
    mean = images.mean((1, 2, 3), keepdim=True)
    return (((images - mean) * contrast + mean + 1) * light - 1).clamp(-1, 1)


def learned(values: Values, train: ImageSet, device: str) -> nn.Module:
    """The averaged network after ordinary training."""
    network = build(values, train).to(device).train()
    images, labels = torch.from_numpy(train.images).to(device), torch.from_numpy(train.labels).to(device)
    optimizer = torch.optim.SGD(
        network.parameters(), values.learning_rate, values.momentum, weight_decay=values.weight_decay,
        nesterov=values.nesterov,
    )  # fmt: skip
    ends = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, values.steps) if values.cosine else None
    average = EMAModel(network.parameters(), decay=EMA_DECAY)
    for _ in range(values.steps):
        rows = torch.randint(len(images), (min(values.batch_size, len(images)),)).repeat_interleave(values.copies)
        batch = changed(images[rows].float() / 127.5 - 1, values.changes)
        optimizer.zero_grad()
        F.cross_entropy(network(batch), labels[rows], label_smoothing=values.label_smoothing).backward()
        optimizer.step()
        average.step(network.parameters())
        if ends is not None:
            ends.step()
    average.copy_to(network.parameters())
    return network


def learned_privately(values: Values, train: ImageSet, device: str, steps: int | None) -> tuple[nn.Module, dict]:
    """The averaged network after DP-SGD with the table's noise, and what it cost. Flips and shifts alone."""
    network = without_batch_norm(build(values, train)).to(device)
    size = min(values.batch_size, len(train))
    mechanism = sampled(size / len(train)).with_noise(values.noise_multiplier)
    facts = {"image_shape": list(train.images.shape[1:])}
    ledger = PrivacyLedger(None, target_epsilon=EPSILON, target_delta=DELTA, num_images=len(train), public_facts=facts)
    door = SensitiveImages(
        train.images, train.labels, num_images=len(train), image_shape=train.images.shape[1:], ledger=ledger,
        class_names=train.class_names, device=torch.device(device),
    )  # fmt: skip
    steps = steps or ledger.affordable_steps(LedgerRow("classifier", mechanism), 1_000_000)
    optimizer = torch.optim.SGD(network.parameters(), values.learning_rate)
    average = EMAModel(network.parameters(), decay=EMA_DECAY)
    for _ in range(steps):
        gradients = door.noisy_gradient(
            network, AugmentedLoss(classification_loss, values.changes), mechanism, max_grad_norm=MAX_GRAD_NORM,
            normaliser=size, noise_multiplicity=values.copies, max_physical_batch_size=PHYSICAL, reserve_steps=steps,
        )  # fmt: skip
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        average.step(network.parameters())
    average.copy_to(network.parameters())
    return network, {"steps": steps, "epsilon": ledger.epsilon(), "delta": DELTA}


def columns(table: str, name: str) -> Iterator[Values]:
    """What is trained, one after another."""
    if table != "grid":
        yield (TABLE_4 if table == "drawn" else TABLE_5)[name]
        return
    values, rates, decays = GRIDS[name]
    for rate, decay in itertools.product(rates, decays):
        yield replace(values, learning_rate=rate, weight_decay=decay)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("drawn", "private", "grid"))
    parser.add_argument("name", choices=sorted({*TABLE_4, *TABLE_5, *GRIDS}))
    parser.add_argument("--images", required=True, help="Images to learn: a Hub id or a folder.")
    parser.add_argument("--real", required=True, help="Images to be tested on.")
    parser.add_argument("--test_split", default="test")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cache_dir", type=Path, default=Path("runs/cache"))
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    source = Source("--images", args.images)
    shape = source.shape("train", args.cache_dir)
    train = source.load("train", shape, resize=True, cache_dir=args.cache_dir)
    test = Source("--real", args.real).load(args.test_split, shape, resize=True, cache_dir=args.cache_dir)
    for values in columns(args.table, args.name):
        if args.table == "private":
            network, cost = learned_privately(values, train, device, args.steps)
        else:
            values, cost = replace(values, steps=args.steps or values.steps), {}
            network = learned(values, train, device)
        right = (network_scores(network, test.images, device).argmax(1) == test.labels).mean()
        print(json.dumps({**vars(values), **cost, "accuracy": round(float(right), 4)}), flush=True)


if __name__ == "__main__":
    main()
