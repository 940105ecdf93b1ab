# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Synthetic images optimised to match noisy gradients (PSG, Chen et al. 2022, Algorithm 1, with the distance of Zhao
et al. 2021, dataset condensation)."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from ..gradients.step import Gradients
from ..randomness.private_generator import PrivateGenerator


GROUPS = 8  # groups of the group normalisation


class SyntheticImages(nn.Module):
    """
    Images as parameters, `[m, C, H, W]`, in about [-1, 1]; classes alternate.

    Args:
        images_per_class, num_classes (`int`): Number of images per class, and of classes.
        image_shape (`tuple[int, int, int]`): (C, H, W).
    """

    labels: torch.Tensor

    def __init__(self, images_per_class: int, num_classes: int, image_shape: tuple[int, int, int]):
        super().__init__()
        number = images_per_class * num_classes
        self.pixels = nn.Parameter(torch.randn(number, *image_shape) / 2)
        self.register_buffer("labels", torch.arange(number) % num_classes)

    def rounded(self) -> torch.Tensor:
        """Returns the images as uint8, on the CPU."""
        return ((self.pixels.detach().clamp(-1, 1) + 1) * 127.5).round().byte().cpu()


class ConvNet(nn.Sequential):
    """Three blocks of convolution, group normalisation, ReLU and average pooling by 2, then a linear layer.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes, width (`int`): Number of outputs, and of channels.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, width: int):
        layers: list[nn.Module] = []
        channels, height, side = image_shape
        for inputs in (channels, width, width):
            # No bias because the norm has one. With one channel per group the norm cancels it, and its gradient would
            # be rounding error, which has a direction, too.
            convolution = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(GROUPS, width), nn.ReLU(), nn.AvgPool2d(2)]
            height, side = height // 2, side // 2
        super().__init__(*layers, nn.Flatten(), nn.Linear(width * height * side, num_classes))

    def train_last_layer_alone(self) -> None:
        """Freezes all but the last layer. Its gradient is each class's mean features minus the features predicted as
        that class. It has few values and therefore little noise."""
        self.requires_grad_(False)
        self[-1].requires_grad_(True)


def classification_loss(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
) -> torch.Tensor:
    """Computes the cross entropy of each row, without random draws. See `SensitiveImages.noisy_gradient`."""
    assert labels is not None
    return F.cross_entropy(model(images), labels, reduction="none")


@dataclass
class GradientMatching:
    """
    Uses a noisy gradient: takes steps of the synthetic images (the caller takes the last one), and some steps of the
    network on them. It uses nothing else, so all of it is post-processing; second derivatives involve only synthetic
    images.

    Each noisy gradient is used several times, with the weights at which it was taken. Images move a little per step,
    and the noise of many gradients averages out. The paper takes one step per gradient.

    Args:
        images (`SyntheticImages`): Images to optimise.
        network (`ConvNet`): Network of the noisy gradient; reinitialised every few steps.
        optimizer (`torch.optim.Optimizer`): Optimizer of the images.
        same_weights (`Callable`): Function that gives the network the same weights in all processes.
        seed (`int`): Seed of the choice among earlier gradients, the same in all processes.
        steps_per_network, image_steps, remembered_gradients, network_steps (`int`),
            network_learning_rate (`float`): See the flags.
    """

    images: SyntheticImages
    network: nn.Module
    optimizer: torch.optim.Optimizer
    same_weights: Callable[[nn.Module], None]
    seed: int
    steps_per_network: int
    image_steps: int
    remembered_gradients: int
    network_steps: int
    network_learning_rate: float

    def __post_init__(self) -> None:
        self.taken, self.random = 0, random.Random(self.seed)
        self.remembered: deque[tuple[Gradients, Gradients]] = deque(maxlen=self.remembered_gradients)
        self.same_weights(self.network)

    def __call__(self, gradients: Gradients) -> None:
        """Takes the network's noisy gradient, keyed by trained parameter name, and sets that of the synthetic
        images."""
        weights = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}
        self.remembered.append((weights, gradients))
        for _ in range(self.image_steps - 1):
            self._towards(*self.random.choice(self.remembered))
            self.optimizer.step()
        self._towards(weights, gradients)
        self._go_on()

    def _towards(self, weights: Gradients, gradients: Gradients) -> None:
        """Sets the gradient of the images towards these gradients of a network with these weights."""
        weights = {name: weight.requires_grad_(name in gradients) for name, weight in weights.items()}
        scores = functional_call(self.network, weights, (self.images.pixels,))
        loss = F.cross_entropy(scores, self.images.labels)
        own = torch.autograd.grad(loss, [weights[name] for name in gradients], create_graph=True)
        far = sum(
            (gradient_distance(mine, noisy) for mine, noisy in zip(own, gradients.values(), strict=True)),
            torch.zeros((), device=loss.device),
        )
        (self.images.pixels.grad,) = torch.autograd.grad(far, [self.images.pixels])

    def _go_on(self) -> None:
        self.taken += 1
        if self.taken % self.steps_per_network == 0:
            for layer in self.network.modules():
                if isinstance(layer, (nn.Conv2d, nn.Linear, nn.GroupNorm)):
                    layer.reset_parameters()
            self.same_weights(self.network)
            return
        optimizer = torch.optim.SGD(self.network.parameters(), lr=self.network_learning_rate, momentum=0.5)
        pixels = self.images.pixels.detach()
        for _ in range(self.network_steps):
            optimizer.zero_grad()
            F.cross_entropy(self.network(pixels), self.images.labels).backward()
            optimizer.step()
        optimizer.zero_grad()


def gradient_distance(mine: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
    """Computes one minus the cosine between the gradients of each output of a layer, summed over outputs. A bias or
    scale counts as one output."""
    first, second = (each.flatten(1) if each.dim() > 1 else each[None] for each in (mine, noisy.to(mine)))
    return (1 - F.cosine_similarity(first, second, dim=1, eps=1e-6)).sum()
