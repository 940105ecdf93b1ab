# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A mixture of Gaussians for each class, made of noisy moments. All of it is post-processing of noisy answers."""

import math
from dataclasses import dataclass

import numpy as np
import torch


CHANCE = 2  # standard deviations of the mean square of noise, beyond which a group holds more than noise


@dataclass(frozen=True)
class GaussianMixture:
    """
    A mixture for each class.

    Args:
        shares (`torch.Tensor` of shape `[classes, P]`): Weights, at least 0.
        means (`torch.Tensor` of shape `[classes, P, D]`): Means.
        covariances (`torch.Tensor` of shape `[classes, P, D, D]`): Symmetric. Noise makes some directions negative;
            these are left out.
    """

    shares: torch.Tensor
    means: torch.Tensor
    covariances: torch.Tensor

    def moments(self, label: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean `[D]` and covariance `[D, D]` of a class, all parts together."""
        shares = self.shares[label] / self.shares[label].sum()
        mean = shares @ self.means[label]
        apart = self.means[label] - mean
        return mean, torch.einsum("p,pij->ij", shares, self.covariances[label] + apart[:, :, None] * apart[:, None])

    def draw(self, labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """
        Draws from the mixtures of classes.

        Args:
            labels (`torch.Tensor` of int64, shape `[n]`): Class of each draw.
            generator (`torch.Generator`): Public.

        Returns:
            `torch.Tensor` of shape `[n, D]`.
        """
        parts = torch.multinomial(self.shares[labels], 1, generator=generator)[:, 0]
        drawn = torch.randn(len(labels), self.means.shape[2], generator=generator)
        for label, part in torch.stack([labels, parts], 1).unique(dim=0).tolist():
            own = (labels == label) & (parts == part)
            values, directions = torch.linalg.eigh(self.covariances[label, part].double())
            scales = (directions * values.clamp_min(0).sqrt()).float()
            drawn[own] = drawn[own] @ scales.T + self.means[label, part]
        return drawn


def shrunk(means: torch.Tensor, deviations: torch.Tensor) -> torch.Tensor:
    """
    Noisy vectors `[..., d]`, moved towards 0 by the noise that they are known to have (James and Stein 1961).

    Args:
        deviations (`torch.Tensor` of shape `[...]`): Standard deviation of each entry's noise.
    """
    return means * (1 - deviations.square() / means.square().mean(-1).clamp_min(1e-12)).clamp_min(0)[..., None]


def denoised(sums: torch.Tensor, sizes: torch.Tensor, noise: float, bands: torch.Tensor) -> torch.Tensor:
    """
    Covariances of parts: what all images have in common, and what a class and then a part add. Of each, groups of
    entries move towards 0 by the noise that they are known to have, and those that it explains become 0. A group is
    two bands, and variances are apart.

    Args:
        sums (`torch.Tensor` of shape `[classes, P, E]`): Noisy sums of products, as pairs of `symmetric`.
        sizes (`torch.Tensor` of shape `[classes, P]`): Numbers of images; 0 for a part that is not used.
        noise (`float`): Standard deviation of the noise in each sum.
        bands (`torch.Tensor` of int64, shape `[D]`): See `Frequencies`.

    Returns:
        `torch.Tensor` of shape `[classes, P, E]`: Pairs.
    """
    first, second = torch.triu_indices(len(bands), len(bands))
    kinds = torch.stack([bands[first], bands[second], (first == second).long()])
    groups = kinds.unique(dim=1, return_inverse=True)[1]
    number = groups.bincount()

    def certain(values: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
        size = values.new_zeros(*values.shape[:-1], len(number)).index_add(-1, groups, values.square()) / number
        kept = 1 - variances[..., None] * (1 + CHANCE * (2 / number).sqrt()) / size.clamp_min(1e-30)
        return values * kept.clamp_min(0)[..., groups]

    used, of_class = (sizes > 0).float(), sizes.sum(1)
    common = certain(sums.sum((0, 1)) / of_class.sum(), used.sum() * (noise / of_class.sum()) ** 2)
    own = common + certain(sums.sum(1) / of_class[:, None] - common, used.sum(1) * (noise / of_class) ** 2)
    parts = sums / sizes.clamp_min(1)[..., None] - own[:, None]
    return own[:, None] + certain(parts, (noise / sizes.clamp_min(1)) ** 2) * used[..., None]


def symmetric(pairs: torch.Tensor) -> torch.Tensor:
    """Pairs i <= j `[..., D (D + 1) / 2]`, those with i < j times sqrt(2), to symmetric matrices `[..., D, D]`."""
    side = (math.isqrt(8 * pairs.shape[-1] + 1) - 1) // 2
    first, second = torch.triu_indices(side, side)
    whole = pairs.new_zeros(*pairs.shape[:-1], side, side)
    whole[..., first, second] = pairs / torch.where(first == second, 1.0, math.sqrt(2)).to(pairs)
    return whole + whole.triu(1).mT


def in_levels(images: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """
    Moves values to those of the same rank in the histogram of their channel.

    Args:
        images (`torch.Tensor` of shape `[n, C, H, W]`): At least one.
        levels (`torch.Tensor` of shape `[C, levels]`): Shares of values up to the end of each level of [0, 1].
    """
    moved = torch.empty_like(images)
    for channel, own in enumerate(levels):
        values, shares = images[:, channel], np.concatenate([[0.0], own.double().numpy()])
        ranks = (values.flatten().argsort().argsort().double() + 0.5) / values.numel()
        found = np.interp(ranks.numpy(), shares, np.linspace(0, 1, len(shares)))
        moved[:, channel] = torch.from_numpy(found).view_as(values)
    return moved
