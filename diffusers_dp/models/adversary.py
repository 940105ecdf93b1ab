# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A generator and its discriminator (DP-GAN, Xie et al. 2018, with the improvements of Bie et al. 2023). Only the
discriminator's real rows are private, and only the door computes on them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..distributed.processes import Processes
from ..gradients.step import Gradients, PhysicalBatch, RowLoss, clipped_gradient_sum
from ..randomness.private_generator import PrivateGenerator
from .draws import Draws
from .feature_generator import FeatureGenerator
from .one_step import OneStepGenerator


#: Losses of a score that should be low (Goodfellow et al. 2014, non-saturating; Lim and Ye 2017).
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logistic": F.softplus,
    "hinge": lambda score: F.relu(1 + score),
}
SMALLEST_SIDE = 3  # smallest side of the discriminator's feature maps
MOMENTUM = 0.99  # momentum of the average accuracy on fakes
SMALLEST_DISTANCE = 0.05  # added to the mean distance of two fakes, so that equal fakes have a finite term
GRACE = 200  # generator steps after a change before that average is used


class Discriminator(nn.Module):
    """Strided convolutions and a linear score of their features, with weights for each class (projection, Miyato and
    Koyama 2018). No normalisation, and no in-place activation.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`, *optional*): Number of classes; `None` for unlabelled images.
        channels (`int`): Channels of the first convolution; each further one doubles them, up to four times as many.
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
        """Scores images `[B, C, H, W]` in [-1, 1] with labels `[B]`; the scores `[B]` are high for real images."""
        features = self.features(images)
        score = self.score(features).squeeze(1)
        if self.by_class is None:
            return score
        assert labels is not None
        return score + (self.by_class(labels) * features).sum(1)


def with_noise(images: torch.Tensor, highest: float, draws: Draws) -> torch.Tensor:
    """Adds Gaussian noise to each image, with a standard deviation drawn per image, uniform up to `highest`. This
    smooths the distributions that the discriminator compares (instance noise, Sonderby et al. 2017)."""
    if not highest:
        return images
    levels = highest * draws.uniform(len(images)).to(images)
    return images + levels[:, None, None, None] * draws.normal(*images.shape)


def row_loss(kind: str, *, real: bool, input_noise: float = 0.0) -> RowLoss:
    """Returns the discriminator's loss of each row. See `SensitiveImages.noisy_gradient`.

    Args:
        kind (`str`): One of `LOSSES`.
        real (`bool`): Whether the rows' scores should be high.
        input_noise (`float`): See `with_noise`; 0 draws nothing.
    """

    def loss(
        model: nn.Module, images: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        scores = model(with_noise(images, input_noise, Draws(generator, images.device)), labels)
        return LOSSES[kind](-scores if real else scores)

    return loss


class Adversaries(nn.Module):
    """
    Generator and discriminator as one module, so that a checkpoint contains both and their progress.

    Args:
        generator (`nn.Module`): Trained module: the UNet of a `OneStepGenerator`, or a `FeatureGenerator`.
        discriminator (`nn.Module`): Discriminator of images and labels.
        discriminator_steps (`int`): Initial number of discriminator steps per generator step.
    """

    discriminator_steps: torch.Tensor
    steps_since: torch.Tensor
    fake_accuracy: torch.Tensor
    generator_steps_since: torch.Tensor

    def __init__(self, generator: nn.Module, discriminator: nn.Module, discriminator_steps: int):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.register_buffer("discriminator_steps", torch.tensor(discriminator_steps))
        self.register_buffer("steps_since", torch.tensor(0))  # discriminator steps since the generator's last step
        self.register_buffer("fake_accuracy", torch.tensor(1.0))  # moving average of the discriminator's accuracy
        self.register_buffer("generator_steps_since", torch.tensor(0))  # since `discriminator_steps` changed


@dataclass
class AdversarialStep:
    """
    Completes a noisy gradient of real rows: sets the discriminator's whole gradient and, after enough of its steps,
    the generator's. It uses only noisy gradients and fakes, so all of it is post-processing.

    A step uses as many fakes as it expects real images. Each fake's gradient is clipped to the same norm, and their
    sum is divided by the same constant, so that both halves have equal weight. Twice as many are drawn after each
    generator step, and each discriminator step uses a random half.

    Args:
        gan (`Adversaries`): Module whose `grad` is set. The generator's is `None` in steps that do not train it.
        draw (`OneStepGenerator` or `FeatureGenerator`): Generator of `gan`, wrapped to draw images.
        num_classes (`int`, *optional*): Number of classes; `None` for unlabelled images.
        processes (`Processes`): Processes of the run.
        kind (`str`), input_noise (`float`): See `row_loss`.
        mode_seeking (`float`): Weight of the inverse mean distance of two fakes of one class (Mao et al. 2019).
        max_grad_norm (`float`), normaliser (`int`): Clip norm and divisor of the real rows.
        generator_batch_size (`int`): Number of fakes per generator step.
        accuracy_floor (`float`, *optional*): Accuracy on fakes below which the discriminator steps per generator step
            double (Bie et al. 2023, adaptive discriminator step frequency). Accuracy on real images is never computed.
        physical_batch_size (`int`): Number of fakes at a time, for memory.
    """

    gan: Adversaries
    draw: OneStepGenerator | FeatureGenerator
    num_classes: int | None
    processes: Processes
    kind: str
    input_noise: float
    mode_seeking: float
    max_grad_norm: float
    normaliser: int
    generator_batch_size: int
    accuracy_floor: float | None
    physical_batch_size: int

    def __post_init__(self) -> None:
        self.real_loss = row_loss(self.kind, real=True, input_noise=self.input_noise)
        self.loss = row_loss(self.kind, real=False, input_noise=self.input_noise)
        self.draws = PrivateGenerator()
        self.drawn: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def __call__(self, gradients: Gradients) -> None:
        """Takes noisy gradients of the discriminator's real rows, keyed by parameter name, and sets all gradients."""
        fake = self._of_fakes()
        for name, parameter in self.gan.discriminator.named_parameters():
            parameter.grad = gradients[name] + fake[name] / self.normaliser
        self.gan.generator.zero_grad()
        self.gan.steps_since += 1
        if self.gan.steps_since >= self.gan.discriminator_steps:
            self.gan.steps_since.zero_()
            self._teach()
            self.drawn = None

    def _of_fakes(self) -> Gradients:
        """Sums the clipped gradients of as many fakes as real images are expected, over all processes."""
        number = self.processes.share_size(self.normaliser)  # it may be 0
        if self.drawn is None:
            self.drawn = self._many_fakes(2 * max(number, 1))
        images, labels = self.drawn
        half = torch.randperm(len(images))[:number].to(images.device)

        def batches() -> Iterator[PhysicalBatch]:
            for part in half.split(self.physical_batch_size) if number else ():
                counts = torch.ones(len(part), dtype=torch.bool, device=part.device)
                yield images[part], None if labels is None else labels[part], counts, None

        return self.processes.sum(clipped_gradient_sum(
            self.gan.discriminator, self.loss, batches(), max_grad_norm=self.max_grad_norm, noise_multiplicity=1,
            generator=self.draws,
        ))  # fmt: skip

    def _teach(self) -> None:
        """Sets the gradient of the generator, whose fakes should score high."""
        images, labels = self._fakes(self.processes.part(self.generator_batch_size), pairs=bool(self.mode_seeking))
        noisy = with_noise(images, self.input_noise, Draws(self.draws, images.device))
        scores = self.gan.discriminator(noisy, labels)
        loss = (F.softplus(-scores) if self.kind == "logistic" else -scores).mean()
        if self.mode_seeking:
            distance = (images[0::2] - images[1::2]).abs().flatten(1).mean(1)
            loss = loss + self.mode_seeking * (1 / (distance + SMALLEST_DISTANCE)).mean()
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
        """Doubles `discriminator_steps` if the average accuracy on fakes falls below the floor."""
        gan = self.gan
        gan.fake_accuracy.lerp_(accuracy, 1 - MOMENTUM)
        gan.generator_steps_since += 1
        if gan.generator_steps_since >= GRACE and gan.fake_accuracy < floor:
            gan.discriminator_steps *= 2
            gan.generator_steps_since.zero_()

    @torch.no_grad()
    def _many_fakes(self, number: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws fakes without gradients, a few at a time."""
        sizes = [min(self.physical_batch_size, number - start) for start in range(0, number, self.physical_batch_size)]
        images, labels = zip(*(self._fakes(size) for size in sizes), strict=True)
        return torch.cat(images), None if self.num_classes is None else torch.cat(labels)

    def _fakes(self, number: int, pairs: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws images in [-1, 1] as a release does, with gradients, and uniform labels; with `pairs`, at least one
        pair of one class."""
        classes = torch.randint(self.num_classes or 1, (number,)).to(self.processes.device)
        if pairs:
            classes = classes[: (number + 1) // 2].repeat_interleave(2)
        images = Clamped.apply(2 * self.draw.draw(classes) - 1)
        return images, None if self.num_classes is None else classes


class Clamped(torch.autograd.Function):
    """Clamps to [-1, 1]. A value outside keeps a gradient that points back inside."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return values.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (values,), (gradient,) = ctx.saved_tensors, gradients
        return gradient.masked_fill((values.abs() > 1) & (gradient * values < 0), 0.0)
