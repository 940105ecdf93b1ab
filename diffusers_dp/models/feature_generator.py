"""The auxiliary one-step generator, whose images match the noisy frequency features."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import nn


SMALLEST_SIZE = 4


class ConditionalBatchNorm(nn.Module):
    """Batch normalisation whose scale and shift come from a conditioning vector (BigGAN)."""

    def __init__(self, channels: int, condition_dim: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.affine = nn.Linear(condition_dim, 2 * channels)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        scale, shift = self.affine(condition)[:, :, None, None].chunk(2, dim=1)
        return self.norm(x) * (1 + scale) + shift


class UpBlock(nn.Module):
    """A residual block that doubles height and width."""

    def __init__(self, in_channels: int, out_channels: int, condition_dim: int):
        super().__init__()
        self.norm1 = ConditionalBatchNorm(in_channels, condition_dim)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = ConditionalBatchNorm(out_channels, condition_dim)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        hidden = F.interpolate(F.relu(self.norm1(x, condition)), scale_factor=2.0)
        hidden = self.conv2(F.relu(self.norm2(self.conv1(hidden), condition)))
        return hidden + F.interpolate(self.shortcut(x), scale_factor=2.0)


class FeatureGenerator(ModelMixin, ConfigMixin):
    """A small class-conditional residual generator like BigGAN (FETA-Pro Section 3.3).

    It is trained on noisy answers only, so batch normalisation is allowed: none of its inputs is private.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W), H = W.
        num_classes (`int`): Number of classes; 1 for unlabelled data.
        channels (`int`, defaults to 64): Channels of each layer.
        latent_dim (`int`, defaults to 60): Length of the noise vector.
        privacy (`dict`, *optional*): Privacy facts stored in the config, not checked.
    """

    @register_to_config
    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        channels: int = 64,
        latent_dim: int = 60,
        privacy: dict | None = None,
    ):
        super().__init__()
        out_channels, height, _ = image_shape
        num_blocks = 0
        while height % 2 == 0 and height > SMALLEST_SIZE:
            height, num_blocks = height // 2, num_blocks + 1
        self.smallest_size = height
        condition_dim = latent_dim + 64
        self.class_embedding = nn.Embedding(num_classes, 64)
        self.project = nn.Linear(condition_dim, channels * height * height)
        self.blocks = nn.ModuleList(UpBlock(channels, channels, condition_dim) for _ in range(num_blocks))
        self.norm_out = nn.BatchNorm2d(channels)
        self.conv_out = nn.Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, latents: torch.Tensor, class_labels: torch.Tensor) -> torch.Tensor:
        """Maps latents `[B, latent_dim]` and labels `[B]` to images `[B, C, H, W]` in [0, 1]."""
        condition = torch.cat([latents, self.class_embedding(class_labels)], dim=1)
        hidden = self.project(condition).unflatten(1, (-1, self.smallest_size, self.smallest_size))
        for block in self.blocks:
            hidden = block(hidden, condition)
        return torch.tanh(self.conv_out(F.relu(self.norm_out(hidden)))) / 2 + 0.5

    @property
    def num_classes(self) -> int:
        """Number of classes; 1 for unlabelled data."""
        return self.config.num_classes

    def draw(self, class_labels: torch.Tensor) -> torch.Tensor:
        """Draws an image for each label, `[len(class_labels), C, H, W]`, in [0, 1], with gradients."""
        return self(torch.randn(len(class_labels), self.config.latent_dim, device=class_labels.device), class_labels)


def frequency_matching_loss(
    features: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    target: torch.Tensor,
    mean_of_all: Callable[[torch.Tensor, int], torch.Tensor] = lambda own, rows: own,
) -> torch.Tensor:
    """Computes the squared distance between the mean embedding of generated images and the noisy one (FETA-Pro
    Equation 8).

    Args:
        features (`Callable`): Map from images `[B, C, H, W]` in [0, 1] to features `[B, D]`.
        images (`torch.Tensor` of shape `[B, C, H, W]`): Generated images.
        labels (`torch.LongTensor` of shape `[B]`): Labels, uniform over classes.
        target (`torch.Tensor` of shape `[classes, D]`): Noisy mean embedding of the sensitive images.
        mean_of_all (`Callable`, *optional*): `Processes.mean_of_all`, if each process has a part of the batch.
    """
    return _difference(features, images, labels, target, mean_of_all).square().sum()


class MovingAverage:
    """
    Alternative to `frequency_matching_loss` for batches that are small for many features: `v . (target - mean)`, where
    `v` is a moving average of that difference, updated by Adam (GFMN, dos Santos et al. 2019).

    Args:
        target (`torch.Tensor` of shape `[classes, D]`): Noisy mean embedding.
        learning_rate (`float`): Learning rate of Adam.
    """

    def __init__(self, target: torch.Tensor, learning_rate: float):
        self.average = torch.zeros_like(target)
        self._optimizer = torch.optim.Adam([self.average], lr=learning_rate, betas=(0.5, 0.999))

    def __call__(self, *matching: Any) -> torch.Tensor:
        """Computes the loss from the arguments of `frequency_matching_loss`."""
        difference = _difference(*matching)
        self.average.grad = self.average - difference.detach()
        self._optimizer.step()
        return (self.average * difference).sum()


def _difference(
    features: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    target: torch.Tensor,
    mean_of_all: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    embedding = torch.zeros_like(target).index_add(0, labels, features(images)) / len(images)
    return target - mean_of_all(embedding, len(images))
