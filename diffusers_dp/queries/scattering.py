# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Scattering features: coefficients of a two-layer wavelet network (Bruna & Mallat 2013). No weight is learned, so no
public data is needed.

Nothing here loads torch before it is used.
"""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .frequency import RandomFourierFeatures
from .mean_features import Untrained


if TYPE_CHECKING:
    import torch


SCATTERING = "scattering"  # what a judge calls them
FILTER_SIZE = 7  # side of a wavelet, in pixels of its pyramid level
#: Parameters of a Morlet wavelet: width of the envelope, frequency, and elongation across the wave.
WIDTH, FREQUENCY, SLANT = 0.8, 3 * math.pi / 4, 0.5
SMOOTH = 1e-3  # the modulus is sqrt(a^2 + b^2 + SMOOTH^2), so that it has a gradient where the wave is zero
WEIGHTS = (1.0, 2.0, 4.0)  # weights of the orders, because the energy falls with each order


@dataclass(frozen=True)
class ScatteringFeatures(Untrained):
    """
    Random Fourier features of scattering coefficients and of pixels, half each. They approximate the mean of a kernel
    on wavelet coefficients and a kernel on pixels. They have norm 1 by construction.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_features (`int`): Number D of features, a multiple of 4.
        levels (`int`), angles (`int`): See `Scattering`.
        scattering_length_scale (`float`), length_scale (`float`): Length scales of the Gaussian kernels of
            coefficients and of pixels in [0, 1].
        seed (`int`): Public seed.
    """

    image_shape: tuple[int, ...]
    num_features: int
    levels: int
    angles: int
    scattering_length_scale: float
    length_scale: float
    seed: int

    @property
    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "image_shape"}

    @cached_property
    def _parts(self) -> "tuple[Scattering, RandomFourierFeatures, RandomFourierFeatures]":
        import torch

        scattering, half = Scattering(self.levels, self.angles), self.num_features // 2
        shape = scattering(torch.zeros(1, *self.image_shape)).shape[1:]
        return (
            scattering,
            RandomFourierFeatures(tuple(shape), half, self.scattering_length_scale, self.seed),
            RandomFourierFeatures(self.image_shape, half, self.length_scale, self.seed),
        )

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1."""
        import torch

        scattering, of_waves, of_pixels = self._parts
        return torch.cat([of_waves(scattering(images)), of_pixels(images)], 1) / math.sqrt(2)


class Scattering:
    """
    `|...||x * psi_1| * psi_2| * phi|`: smoothed moduli of wavelet transforms, of orders 0, 1 and 2.

    In this pyramid every level filters with the same small Morlet wavelets, one for each angle, and halves the size. A
    path of order 2 goes from a finer to a coarser level. Borders are replicated.

    Args:
        levels (`int`): Number J of levels; maps shrink by 2^J.
        angles (`int`): Number L of angles over half a turn.
    """

    def __init__(self, levels: int, angles: int):
        import torch

        self.levels = levels
        position = torch.arange(FILTER_SIZE, dtype=torch.float64) - FILTER_SIZE // 2
        turn = torch.arange(angles, dtype=torch.float64)[:, None, None] * math.pi / angles
        along = position * turn.cos() + position[:, None] * turn.sin()
        across = position[:, None] * turn.cos() - position * turn.sin()
        envelope = (-(along.square() + (SLANT * across).square()) / (2 * WIDTH**2)).exp()
        envelope = envelope / envelope.sum((1, 2), keepdim=True)
        waves = torch.stack([(FREQUENCY * along).cos(), (FREQUENCY * along).sin()], 1)
        # Subtract the mean, so that a flat image gives 0.
        waves = (waves - (waves * envelope[:, None]).sum((2, 3), keepdim=True)) * envelope[:, None]
        self._wavelets = waves.flatten(0, 1)[:, None].float()  # [2 L, 1, size, size]
        binomial = torch.tensor([1.0, 4, 6, 4, 1]) / 16
        self._smoothing = (binomial[:, None] * binomial)[None, None]

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to coefficients `[b, n]`: `C (1 + J L + J (J - 1) / 2 L^2)` maps, whose
        sides are divided by 2^J and rounded up."""
        import torch

        orders = [images, images[:, :0], images[:, :0]]
        for _ in range(self.levels):
            waves = [self._moduli(maps) for maps in orders[:2]]
            grown = [orders[0], torch.cat([orders[1], waves[0]], 1), torch.cat([orders[2], waves[1]], 1)]
            orders = [_filtered(maps, self._smoothing, stride=2) for maps in grown]
        return torch.cat([maps.flatten(1) * weight for maps, weight in zip(orders, WEIGHTS, strict=True)], 1)

    def _moduli(self, maps: "torch.Tensor") -> "torch.Tensor":
        """Computes the moduli `[b, c L, h, w]` of maps `[b, c, h, w]`."""
        parts = _filtered(maps, self._wavelets).unflatten(1, (-1, 2))
        return (parts.square().sum(2) + SMOOTH**2).sqrt() - SMOOTH


def _filtered(maps: "torch.Tensor", filters: "torch.Tensor", stride: int = 1) -> "torch.Tensor":
    """Filters each map with each filter: `[b, c, h, w]` to `[b, c * filters, h', w']`."""
    import torch.nn.functional as F

    channels, edge = maps.shape[1], filters.shape[-1] // 2
    if channels == 0:
        return maps[:, :, ::stride, ::stride]
    padded = F.pad(maps, (edge,) * 4, mode="replicate")
    return F.conv2d(padded, filters.to(maps.device).repeat(channels, 1, 1, 1), stride=stride, groups=channels)
