# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Hermite features: ordered polynomials of pixels (DP-HP, Vinaroz et al. 2022).

Nothing here loads torch before it is used.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .mean_features import Untrained, unit


if TYPE_CHECKING:
    import torch


SUM_SHARE = 0.8  # share of the sum in the squared norm; the product has the rest


@dataclass(frozen=True)
class HermiteFeatures(Untrained):
    """
    Features of a sum of Gaussian kernels of single pixels and of a product kernel of two pixels, scaled to norm 1.

    The features of one pixel are `sqrt(lambda_c) f_c`, `c = 0, ..., order`, by Mehler's formula for the kernel
    `exp(-rho / (1 - rho^2) (x - y)^2)`: `lambda_c = (1 - rho) rho^c` and `f_c(x) = H_c(x) exp(-rho / (1 + rho) x^2) /
    sqrt(N_c)`, `N_c = 2^c c! sqrt((1 - rho) / (1 + rho))`.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        order (`int`), product_order (`int`): Highest degrees of the polynomials of the sum and of the product.
        rho (`float`): Kernel parameter in (0, 1); larger values give a narrower kernel.
        seed (`int`): Public seed that chooses the product's two pixels.
    """

    image_shape: tuple[int, ...]
    order: int
    product_order: int
    rho: float
    seed: int

    @property
    def num_features(self) -> int:
        return math.prod(self.image_shape) * (self.order + 1) + (self.product_order + 1) ** 2

    @property
    def facts(self) -> dict[str, Any]:
        settings = {name: value for name, value in asdict(self).items() if name != "image_shape"}
        return {"num_features": self.num_features, **settings}

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1."""
        import torch

        pixels = images.flatten(1)
        generator = torch.Generator().manual_seed(self.seed)
        pair = torch.randperm(pixels.shape[1], generator=generator)[:2].to(images.device)
        whole = unit(self._polynomials(pixels, self.order).flatten(1))
        one, other = self._polynomials(pixels[:, pair], self.product_order).unbind(1)
        product = unit((one[:, :, None] * other[:, None]).flatten(1))
        return torch.cat([whole * SUM_SHARE**0.5, product * (1 - SUM_SHARE) ** 0.5], 1)

    def _polynomials(self, pixels: "torch.Tensor", order: int) -> "torch.Tensor":
        """Maps `[b, p]` to `[b, p, order + 1]` by the recursion of H_c with its factors:
        `h_(c+1) = x sqrt(2 rho / (c + 1)) h_c - rho sqrt(c / (c + 1)) h_(c-1)`."""
        import torch

        rho = self.rho
        scale = math.sqrt((1 - rho) / math.sqrt((1 - rho) / (1 + rho)))
        found = [scale * (-rho / (1 + rho) * pixels.square()).exp()]
        for degree in range(order):
            following = pixels * math.sqrt(2 * rho / (degree + 1)) * found[-1]
            if degree:
                following = following - rho * math.sqrt(degree / (degree + 1)) * found[-2]
            found.append(following)
        return torch.stack(found, -1)
