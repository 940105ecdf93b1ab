# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public images, moved to noisy moments of the lowest frequencies of a class: post-processing of noisy answers."""

import torch

from ..queries.moments import Frequencies


FEWEST_IMAGES = 50  # public ones of a class, whose covariance says little otherwise
OF_A_MAP = 500  # images, at least, that the map of a class is found from
REGULAR = 0.05  # added to variances of public images, as a share of their mean
CONTRASTS, FLAT = 0.25, 0.25  # spread of their logarithms; below this share of the mean contrast an image stays flat


def moved(
    images: torch.Tensor, number: int, spectrum: Frequencies, mean: torch.Tensor, covariance: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:  # fmt: skip
    """
    Public images of about one contrast, moved by the map that gives their coefficients the mean and the covariance
    that are asked for, and moves them least (optimal transport between Gaussians, Peyre and Cuturi 2019, Remark 2.31).

    Args:
        images (`torch.Tensor` of uint8, shape `[n, C, H, W]`): Two at least, taken in a random order, and again when
            all were.
        number (`int`): Images to return.
        spectrum (`Frequencies`): What turns images into D coefficients. Higher frequencies stay as they are.
        mean, covariance (`torch.Tensor` of shapes `[D]` and `[D, D]`): Asked for; negative directions are left out.
        generator (`torch.Generator`): Public.

    Returns:
        `torch.Tensor` of shape `[number, C, H, W]`, which may leave [0, 1].
    """
    used = max(number, OF_A_MAP)
    order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(-(-used // len(images)))])
    chosen = images[order[:used]].float() / 255
    grey = chosen.mean((2, 3), keepdim=True)
    contrasts = (chosen - grey).square().mean((1, 2, 3), keepdim=True).sqrt()
    wanted = contrasts.mean() * (CONTRASTS * torch.randn(contrasts.shape, generator=generator)).exp()
    chosen = grey + (chosen - grey) * wanted / contrasts.clamp_min(FLAT * contrasts.mean() + 1e-6)
    found = spectrum(chosen).double()
    own = found.T.cov() + (REGULAR * found.var(0).mean() + 1e-9) * torch.eye(found.shape[1])
    root, back = _power(own, 0.5), _power(own, -0.5)
    there = back @ _power(root @ covariance.double() @ root, 0.5) @ back
    goal = (found - found.mean(0)) @ there + mean
    return (chosen + spectrum.images((goal - found).float()) - 0.5)[:number]


def _power(matrix: torch.Tensor, exponent: float) -> torch.Tensor:
    values, directions = torch.linalg.eigh(matrix)
    return (directions * values.clamp_min(1e-12) ** exponent) @ directions.T
