# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A generator and the discriminator that teaches it (DP-GAN, Xie et al. 2018; as Bie et al. 2023 made it work). Only
the discriminator's real rows are private, and the door alone computes on them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import UNet2DModel
from torch import nn

from ..distributed.processes import Processes
from ..gradients.step import Gradients, PhysicalBatch, RowLoss, clipped_gradient_sum
from ..randomness.private_generator import PrivateGenerator
from .one_step import OneStepGenerator


#: Of a score that should be low (Goodfellow et al. 2014, non-saturating; Lim and Ye 2017).
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logistic": F.softplus,
    "hinge": lambda score: F.relu(1 + score),
}
SMALLEST_SIDE = 3  # of the discriminator's feature maps
MOMENTUM = 0.99  # of the average accuracy on fakes
GRACE = 200  # generator steps after a change, before that average is believed


class Discriminator(nn.Module):
    """Convolutions that halve, and a score that is linear in their features, with weights of its own for each class
    (projection, Miyato and Koyama 2018). No normalisation, and no activation in place.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`, *optional*): Classes; `None` for unlabelled images.
        channels (`int`): Of the first convolution; each further one has twice as many, up to four times.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int | None, channels: int):
        super().__init__()
        inputs, side, _ = image_shape
        layers: list[nn.Module] = []
        while side > SMALLEST_SIDE:
            outputs = min(2 * inputs, 4 * channels) if layers else channels
            layers += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
            inputs, side = outputs, side // 2
        self.features = nn.Sequential(*layers, nn.Flatten())
        size = inputs * side**2
        self.score = nn.Linear(size, 1)
        self.by_class: nn.Embedding | None = None
        if num_classes is not None:
            self.by_class = nn.Embedding(num_classes, size)
            nn.init.zeros_(self.by_class.weight)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """Scores `[B]`, high for real ones, of images `[B, C, H, W]` in [-1, 1] and labels `[B]`."""
        features = self.features(images)
        score = self.score(features).squeeze(1)
        if self.by_class is None:
            return score
        assert labels is not None
        return score + (self.by_class(labels) * features).sum(1)


def row_loss(kind: str, *, real: bool) -> RowLoss:
    """The discriminator's loss of each row; it draws nothing. See `SensitiveImages.noisy_gradient`.

    Args:
        kind (`str`): One of `LOSSES`.
        real (`bool`): Whether the rows' scores should be high.
    """

    def loss(
        model: nn.Module, images: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        scores = model(images, labels)
        return LOSSES[kind](-scores if real else scores)

    return loss


class Adversaries(nn.Module):
    """
    Generator and discriminator as one module, so that a checkpoint holds both, and how far they are.

    Args:
        unet (`UNet2DModel`): See `OneStepGenerator`.
        discriminator (`nn.Module`): Of images and labels.
        discriminator_steps (`int`): Steps of the discriminator for one of the generator, to begin with.
    """

    discriminator_steps: torch.Tensor
    steps_since: torch.Tensor
    fake_accuracy: torch.Tensor
    generator_steps_since: torch.Tensor

    def __init__(self, unet: UNet2DModel, discriminator: nn.Module, discriminator_steps: int):
        super().__init__()
        self.generator, self.discriminator = unet, discriminator
        self.register_buffer("discriminator_steps", torch.tensor(discriminator_steps))
        self.register_buffer("steps_since", torch.tensor(0))  # of the discriminator, since the generator's last one
        self.register_buffer("fake_accuracy", torch.tensor(1.0))  # of the discriminator, a moving average
        self.register_buffer("generator_steps_since", torch.tensor(0))  # since `discriminator_steps` changed


class AdversarialStep:
    """
    What follows from a noisy gradient of real rows: the discriminator's whole gradient and, after enough of its steps,
    the generator's. It looks at noisy gradients and at fakes alone, so all of it is post-processing.

    As many fakes as a step expects real images stand against these; the gradient of each is clipped to the same norm,
    and their sum is divided by the same constant, so that both halves weigh the same.

    Args:
        gan (`Adversaries`): Whose `grad` is set. That of the generator is `None` in the steps that it sits out.
        draw (`OneStepGenerator`): Its generator.
        num_classes (`int`, *optional*): Classes; `None` for unlabelled images.
        processes (`Processes`): Of the run.
        kind (`str`): One of `LOSSES`.
        max_grad_norm (`float`), normaliser (`int`): Those of the real rows.
        generator_batch_size (`int`): Fakes of a generator's step.
        accuracy_floor (`float`, *optional*): Twice as many discriminator steps for each of the generator, whenever the
            average accuracy on fakes is below (Bie et al. 2023, adaptive discriminator step frequency). Accuracy on
            real images is never computed.
        physical_batch_size (`int`): Fakes at a time, for memory.
    """

    def __init__(
        self,
        gan: Adversaries,
        draw: OneStepGenerator,
        num_classes: int | None,
        processes: Processes,
        *,
        kind: str,
        max_grad_norm: float,
        normaliser: int,
        generator_batch_size: int,
        accuracy_floor: float | None,
        physical_batch_size: int,
    ):
        self.gan, self.generator, self.num_classes, self.processes = gan, draw, num_classes, processes
        self.kind, self.max_grad_norm, self.normaliser = kind, max_grad_norm, normaliser
        self.generator_batch_size, self.accuracy_floor = generator_batch_size, accuracy_floor
        self.physical_batch_size = physical_batch_size
        self.loss, self.draws = row_loss(kind, real=False), PrivateGenerator()

    def __call__(self, gradients: Gradients) -> None:
        """Noisy gradients of the discriminator's real rows, by the names of its parameters."""
        fake = self._of_fakes()
        for name, parameter in self.gan.discriminator.named_parameters():
            parameter.grad = gradients[name] + fake[name] / self.normaliser
        self.gan.generator.zero_grad()
        self.gan.steps_since += 1
        if self.gan.steps_since >= self.gan.discriminator_steps:
            self.gan.steps_since.zero_()
            self._teach()

    def _of_fakes(self) -> Gradients:
        """The sum of clipped gradients of as many fakes as real images are expected."""

        def batches() -> Iterator[PhysicalBatch]:
            left = self.processes.part(self.normaliser)
            while left > 0:
                with torch.no_grad():
                    images, labels = self._fakes(min(left, self.physical_batch_size))
                yield images, labels, torch.ones(len(images), dtype=torch.bool, device=images.device), None
                left -= len(images)

        return self.processes.sum(clipped_gradient_sum(
            self.gan.discriminator, self.loss, batches(), max_grad_norm=self.max_grad_norm, noise_multiplicity=1,
            generator=self.draws,
        ))  # fmt: skip

    def _teach(self) -> None:
        """The gradient of the generator, for fakes that should score high."""
        images, labels = self._fakes(self.processes.part(self.generator_batch_size))
        scores = self.gan.discriminator(images, labels)
        loss = (F.softplus(-scores) if self.kind == "logistic" else -scores).mean()
        parameters = list(self.gan.generator.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
        ):
            parameter.grad = gradient
        self.processes.average_gradients(self.gan.generator, len(images))
        if self.accuracy_floor is not None:
            self._adapt(
                self.processes.mean_of_all((scores.detach() < 0).float().mean(), len(images)), self.accuracy_floor
            )

    def _adapt(self, accuracy: torch.Tensor, floor: float) -> None:
        """By the accuracy on fakes of one step of the generator."""
        gan = self.gan
        gan.fake_accuracy.lerp_(accuracy, 1 - MOMENTUM)
        gan.generator_steps_since += 1
        if gan.generator_steps_since >= GRACE and gan.fake_accuracy < floor:
            gan.discriminator_steps *= 2
            gan.generator_steps_since.zero_()

    def _fakes(self, number: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Images in [-1, 1], as a release draws them, and labels, evenly; with gradients."""
        classes = torch.randint(self.num_classes or 1, (number,)).to(self.processes.device)
        images = Clamped.apply(2 * self.generator.draw(classes) - 1)
        return images, None if self.num_classes is None else classes


class Clamped(torch.autograd.Function):
    """Clamps to [-1, 1]. A value beyond that keeps the gradient that leads it back."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return values.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (values,), (gradient,) = ctx.saved_tensors, gradients
        return gradient.masked_fill((values.abs() > 1) & (gradient * values < 0), 0.0)
