# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Distances between two sets of feature vectors, of synthetic and real images.

Every function takes features `[n, D]`, independent of images, files and extractors; `fidelity_report.py` names the
numbers. Features are finite (`check_features`) and enough (`analyses.py`). Distances are Euclidean. Likelihoods are in
`feature_likelihood.py`.
"""

import numpy as np
import torch
from scipy import linalg, special

from ..errors import UsageError


NEIGHBOURS = 3
ROWS_AT_A_TIME = 1000  # rows of a matrix of distances: 40 MB against 10,000 images
ROWS_OF_A_COVARIANCE = 10_000
#: A squared distance below this share of both squared lengths is rounding error of 0. A single pixel that differs by
#: one of 255 levels gives 40 times as much in an RGB image of 256 x 256.
ROUNDING = 1e-12


def check_features(features: np.ndarray, whose: str) -> None:
    """Raises `UsageError` unless all features are finite. `whose`, for the sentence: "synthetic", "real"."""
    if not np.isfinite(features).all():
        raise UsageError(
            f"There are features of {whose} images that are not finite: look for damaged weights, or choose another "
            "extractor by --extractors."
        )


def frechet_distance(real: np.ndarray, synthetic: np.ndarray, *, shrink: bool = False) -> float:
    """Computes the squared Fréchet distance of Gaussians with these moments (Heusel et al. 2017, Equation 6; Dowson &
    Landau 1982): `|m1 - m2|^2 + Tr(S1 + S2 - 2 (S1 S2)^(1/2))`, with unbiased covariances, in float64.

    `Tr (S1 S2)^(1/2)` is the sum of the singular values of `S1^(1/2) S2^(1/2)`, also of singular covariances.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        shrink (`bool`, defaults to `False`): Whether to estimate both covariances by Ledoit & Wolf (2004), which needs
            fewer images than D. The value then depends even more on the number of images.
    """
    both, dimensions = [real, synthetic], real.shape[1]
    if len(real) + len(synthetic) < dimensions:  # coordinates in what all images span: distances are the same
        both = np.split(linalg.qr(np.concatenate(both, dtype=np.float64).T, mode="economic")[1].T, [len(real)])
    (mean1, cov1, rest1), (mean2, cov2, rest2) = (_moments(rows, dimensions, shrink) for rows in both)
    cross = linalg.svdvals(_root(cov1) @ _root(cov2)).sum()
    others = (dimensions - len(mean1)) * (np.sqrt(rest1) - np.sqrt(rest2)) ** 2
    return max(0.0, float(((mean1 - mean2) ** 2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * cross + others))


def _moments(features: np.ndarray, dimensions: int, shrink: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance, and the variance in each of the `dimensions` that the features do not have."""
    mean = features.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((features.shape[1],) * 2)
    for start in range(0, len(features), ROWS_OF_A_COVARIANCE):  # avoids a float64 copy of all rows
        centred = features[start : start + ROWS_OF_A_COVARIANCE] - mean
        covariance += centred.T @ centred
    covariance /= len(features) - (not shrink)
    if not shrink:
        return mean, covariance, 0.0
    # As scikit-learn's `ledoit_wolf`, which takes the dimensions of its rows for all that there are.
    mu, squares = np.trace(covariance) / dimensions, np.square(covariance).sum()
    error = (np.square(np.square(features - mean).sum(1)).mean() - squares) / len(features)
    part = min(1.0, error / (squares - dimensions * mu**2)) if error > 0 else 0.0
    return mean, (1 - part) * covariance + part * mu * np.eye(len(covariance)), float(part * mu)


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = linalg.eigh(covariance)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T


def inception_score(probabilities: np.ndarray) -> float:
    """Computes `exp(mean_x KL(p(y|x) || p(y)))` over all images at once, with the natural logarithm (Salimans et al.
    2016, Section 4).

    Args:
        probabilities (`np.ndarray`, shape `[n, classes]`): Class probabilities; rows sum to 1.

    Returns:
        `float`: Score from 1 to the number of classes; higher is better.
    """
    rows = probabilities.astype(np.float64)
    return float(np.exp(special.rel_entr(rows, rows.mean(axis=0)).sum(axis=1).mean()))


def precision_recall(
    real: np.ndarray, synthetic: np.ndarray, *, k: int = NEIGHBOURS, device: str = "cpu"
) -> tuple[float, float]:
    """Computes improved precision and recall (Kynkäänniemi et al. 2019, Equations 1 to 3).

    Precision is the share of synthetic images that are within a real image's distance to its k-th nearest other real
    image. Recall is the same with real and synthetic images exchanged.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        k (`int`, defaults to 3): Number of neighbours without the image itself; code that counts it uses 4.
        device (`str`, defaults to `"cpu"`): Device of the distances.

    Returns:
        `tuple[float, float]`: Precision and recall, in [0, 1].
    """
    first, second = _centred(real, synthetic, device=device)
    return _share_within(second, first, k), _share_within(first, second, k)


def squared_distances(points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Computes squared distances of all points `[n, D]` to all others `[m, D]`, in float64; equal points give 0.

    Matrix products are 15 times as fast as sums of squared differences, and as exact if the points are around 0."""
    points, others = points.double(), others.double()
    lengths = points.square().sum(dim=1)[:, None] + others.square().sum(dim=1)
    squared = torch.addmm(lengths, points, others.T, alpha=-2)
    return squared.masked_fill_(squared < ROUNDING * lengths, 0)


def _centred(real: np.ndarray, synthetic: np.ndarray, *, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts both to float64 and subtracts the mean of the real ones, as `squared_distances` needs."""
    mean = real.mean(axis=0, dtype=np.float64)
    return torch.from_numpy(real - mean).to(device), torch.from_numpy(synthetic - mean).to(device)


def _share_within(points: torch.Tensor, manifold: torch.Tensor, k: int) -> float:
    radii = []
    for start in range(0, len(manifold), ROWS_AT_A_TIME):
        distances = squared_distances(manifold[start : start + ROWS_AT_A_TIME], manifold)
        distances.diagonal(offset=start).fill_(float("inf"))  # an image is not its own neighbour
        radii.append(distances.topk(k, largest=False).values[:, -1])
    limit = torch.cat(radii) * (1 + ROUNDING)  # so that a copy counts as being as close as its original
    within = sum(
        int((squared_distances(points[start : start + ROWS_AT_A_TIME], manifold) <= limit).any(dim=1).sum())
        for start in range(0, len(points), ROWS_AT_A_TIME)
    )
    return within / len(points)
