# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A generator is fitted to noisy mean features of each class, and its draws move to noisy moments of their lowest
frequencies. All of it is post-processing of noisy answers."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from ..queries.moments import Frequencies
from .feature_generator import FeatureGenerator
from .gaussian_mixture import shrunk


CLASS_TERM = 0.05  # weight of distances along what tells classes apart: 0.4 was worse on training images of CIFAR-10
LEAST_SPREAD = 0.01  # of means of classes along a direction, as a share of the widest, for it to tell any apart
FEWEST_DRAWN, DRAWN_AT_ONCE = 500, 250  # draws of a class that its map is found from
REGULAR = 0.05  # added to variances of draws, as a share of their mean


class ClassFeatures:
    """
    A loss without bias for a generator: noisy mean features of each class (DP-MEPF, Harder et al. 2023, Section 3),
    and once more what tells classes apart, because it is small beside what all images share.

    The square of one mean of few images is larger the more they differ, and would teach a generator to draw one image
    of each class. The product of two halves' distances is not.

    Args:
        means (`torch.Tensor` of shape `[classes, D]`): Noisy mean features of the sensitive images of each class.
        deviations (`torch.Tensor` of shape `[classes]`): Standard deviation of the noise in each value of `means`.
    """

    def __init__(self, means: torch.Tensor, deviations: torch.Tensor):
        overall = means.mean(0)
        apart = shrunk(means - overall, deviations)
        _, widths, directions = torch.linalg.svd(apart - apart.mean(0), full_matrices=False)
        told = widths > LEAST_SPREAD * widths.max()
        self.means, self.directions = overall + apart, (directions[told] / widths[told, None]).T

    def __call__(
        self, features: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, labels: torch.Tensor, *_: object
    ) -> torch.Tensor:
        """Computes the loss of drawn images `[B, C, H, W]`, whose halves have the same classes."""
        first, second = (
            self._distances(*half) for half in zip(features(varied(images)).chunk(2), labels.chunk(2), strict=True)
        )
        along, too = first @ self.directions, second @ self.directions
        return (first * second).sum() + CLASS_TERM * (along * too).sum()

    def _distances(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        drawn, places = labels.unique(return_inverse=True)
        sums = rows.new_zeros(len(drawn), rows.shape[1]).index_add(0, places, rows)
        return self.means[drawn] - sums / places.bincount()[:, None]


def varied(images: torch.Tensor, most: int = 2) -> torch.Tensor:
    """Images `[B, C, H, W]`, each mirrored or not, and all shifted by up to `most` pixels, at random: a generator then
    finds fewer pixels that please a network alone."""
    height, width = images.shape[2:]
    down, right = (int(torch.randint(2 * most + 1, ())) for _ in range(2))
    moved = F.pad(images, (most,) * 4, mode="reflect")[:, :, down : down + height, right : right + width]
    return torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, moved.flip(3), moved)


@torch.no_grad()
def draw_class(
    generator: FeatureGenerator, label: int, number: int, latents_of: torch.Generator, spectrum: Frequencies,
    mean: torch.Tensor, covariance: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """
    Draws of a class, moved by the map that gives their coefficients the mean and the covariance that are asked for,
    and moves them least (optimal transport between Gaussians, Peyre and Cuturi 2019, Remark 2.31). The network scales
    each layer to one length, so colours and contrast of a draw are not what its features say.

    Args:
        generator (`FeatureGenerator`): Fitted.
        label, number (`int`): Class, and images of it.
        latents_of (`torch.Generator`): Public.
        spectrum (`Frequencies`): What turns images into coefficients. Higher frequencies stay as they are drawn.
        mean, covariance (`torch.Tensor` of shapes `[D]` and `[D, D]`): Asked for; negative directions are left out.

    Returns:
        `torch.Tensor` of shape `[number, C, H, W]`, which may leave [0, 1].
    """
    generator, device = generator.eval(), generator.device
    latents = torch.randn(max(number, FEWEST_DRAWN), generator.config.latent_dim, generator=latents_of)
    images = torch.cat([
        generator(part.to(device), torch.full((len(part),), label, device=device)).cpu()
        for part in latents.split(DRAWN_AT_ONCE)
    ])  # fmt: skip
    drawn = spectrum(images).double()
    own = drawn.T.cov() + REGULAR * drawn.var(0).mean() * torch.eye(drawn.shape[1])
    root, back = _power(own, 0.5), _power(own, -0.5)
    there = back @ _power(root @ covariance.double() @ root, 0.5) @ back
    moved = (drawn - drawn.mean(0)) @ there + mean
    return (images + spectrum.images((moved - drawn).float()) - 0.5)[:number]


def _power(matrix: torch.Tensor, exponent: float) -> torch.Tensor:
    values, directions = torch.linalg.eigh(matrix)
    return (directions * values.clamp_min(1e-12) ** exponent) @ directions.T
