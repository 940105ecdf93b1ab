# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Distances between two sets of feature vectors: how close synthetic images come to real ones.

Every function takes features `[n, D]` and knows nothing of images, files or extractors; `fidelity_report.py` gives the
numbers their names. Distances are Euclidean. Likelihoods are in `feature_likelihood.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import linalg, special
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import polynomial_kernel
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..errors import UsageError


NEIGHBOURS = 3
KERNEL_SUBSETS = 100
KERNEL_SUBSET_SIZE = 1000
DOMAIN_IMAGES = 5000
DOMAIN_FOLDS = 5
ROWS_AT_A_TIME = 1000  # of a matrix of distances: 40 MB against 10,000 images
ROWS_OF_A_COVARIANCE = 10_000
#: A squared distance below this share of both squared lengths is what rounding leaves of 0. A single pixel that
#: differs by one of 255 levels is 40 times as much in an RGB image of 256 x 256.
ROUNDING = 1e-12


@dataclass(frozen=True)
class FrechetDistance:
    """A Fréchet distance, and how the covariances were estimated: `unbiased` or `Ledoit-Wolf`."""

    value: float
    covariance: str


@dataclass(frozen=True)
class KernelDistance:
    """A squared kernel distance, the mean over subsets, and the standard error that the drawing of the subsets
    leaves."""

    value: float
    standard_error: float
    subset_size: int


@dataclass(frozen=True)
class DomainJudgement:
    """Which of two domains synthetic images are taken for, and how well the domains can be told apart at all.

    Args:
        share_private (`float`): Share of synthetic images that are taken for private ones.
        share_private_error (`float`): Its binomial standard error.
        accuracy (`float`): Of the discriminator on images it was not fitted on, 0.5 = chance; near chance, the share
            means nothing.
        images_per_domain (`int`): Drawn from each domain.
    """

    share_private: float
    share_private_error: float
    accuracy: float
    images_per_domain: int


def check_features(features: np.ndarray, whose: str) -> None:
    """Raises `UsageError` unless all features are finite. `whose`, for the sentence: "synthetic", "real"."""
    if not np.isfinite(features).all():
        raise UsageError(
            f"There are features of {whose} images that are not finite: look for damaged weights, or choose another "
            "extractor by --extractors."
        )


def frechet_distance(real: np.ndarray, synthetic: np.ndarray, *, shrink: bool = False) -> FrechetDistance:
    """Squared Fréchet distance of the Gaussians with these moments (Heusel et al. 2017, Equation 6; Dowson & Landau
    1982): `|m1 - m2|^2 + Tr(S1 + S2 - 2 (S1 S2)^(1/2))`, covariances unbiased, computed in float64.

    `Tr (S1 S2)^(1/2)` is the sum of the singular values of `S1^(1/2) S2^(1/2)`, which needs no root of a product that
    is not symmetric and stays exact where a covariance is singular.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        shrink (`bool`, defaults to `False`): Estimate both covariances by Ledoit & Wolf (2004) instead, which needs
            fewer images than D. The value then depends on the number of images even more than it always does.

    Raises:
        UsageError: A set has no more than D images (2 at least with `shrink`), or features are not finite.
    """
    for features, whose in ((real, "real"), (synthetic, "synthetic")):
        check_features(features, whose)
    dimension = real.shape[1]
    if min(len(real), len(synthetic)) <= (1 if shrink else dimension):
        raise UsageError(
            f"A covariance of {dimension} feature dimensions needs more than {1 if shrink else dimension} real images "
            f"and as many synthetic ones, of which there are {len(synthetic)}: give more, or leave fid out of "
            "--metrics."
        )
    (mean1, cov1), (mean2, cov2) = (_moments(features, shrink) for features in (real, synthetic))
    cross = linalg.svdvals(_root(cov1) @ _root(cov2)).sum()
    value = float(((mean1 - mean2) ** 2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * cross)
    return FrechetDistance(max(value, 0.0), "Ledoit-Wolf" if shrink else "unbiased")


def _moments(features: np.ndarray, shrink: bool) -> tuple[np.ndarray, np.ndarray]:
    mean = features.mean(axis=0, dtype=np.float64)
    if shrink:
        return mean, ledoit_wolf(features.astype(np.float64))[0]
    covariance = np.zeros((features.shape[1],) * 2)
    for start in range(0, len(features), ROWS_OF_A_COVARIANCE):  # no float64 copy of all
        centred = features[start : start + ROWS_OF_A_COVARIANCE] - mean
        covariance += centred.T @ centred
    return mean, covariance / (len(features) - 1)


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = linalg.eigh(covariance)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T


def class_frechet_distances(
    real: np.ndarray,
    real_labels: np.ndarray,
    synthetic: np.ndarray,
    synthetic_labels: np.ndarray,
    class_names: Sequence[str],
) -> dict[str, FrechetDistance]:
    """`frechet_distance` of each class that has two images at least in both sets; a class without is left out.

    One class with too few images for its covariance has those of **all** classes shrunk, for two estimators cannot be
    compared.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        real_labels, synthetic_labels (`np.ndarray` of int64, shapes `[n]` and `[m]`): Indices of `class_names`.
    """
    pairs = {
        name: (real[real_labels == index], synthetic[synthetic_labels == index])
        for index, name in enumerate(class_names)
    }
    pairs = {name: pair for name, pair in pairs.items() if min(map(len, pair)) >= 2}
    shrink = any(min(map(len, pair)) <= real.shape[1] for pair in pairs.values())
    return {name: frechet_distance(*pair, shrink=shrink) for name, pair in pairs.items()}


def kernel_distance(
    real: np.ndarray,
    synthetic: np.ndarray,
    *,
    seed: int,
    subsets: int = KERNEL_SUBSETS,
    subset_size: int = KERNEL_SUBSET_SIZE,
) -> KernelDistance:
    """Kernel Inception Distance (Binkowski et al. 2018, Section 4): the unbiased squared maximum mean discrepancy
    (Gretton et al. 2012, Equation 3) under `k(x, y) = (x.y / D + 1)^3`, averaged over random subsets without
    repetition.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        seed (`int`): Of the subsets.
        subsets, subset_size (`int`, default to 100 and 1000): A smaller set is taken whole.

    Returns:
        `KernelDistance`: Unbiased, hence also below 0 for sets that are alike. Its standard error takes the images for
        given, and the subsets, which overlap, for independent.

    Raises:
        UsageError: A set has fewer than 2 images, or features are not finite.
    """
    for features, whose in ((real, "real"), (synthetic, "synthetic")):
        check_features(features, whose)
    size = min(subset_size, len(real), len(synthetic))
    if size < 2:
        raise UsageError(
            f"A kernel distance needs 2 real images and 2 synthetic ones, of which there are {len(synthetic)}: give "
            "more, or leave kid out of --metrics."
        )
    draws = np.random.default_rng(seed)
    values = np.empty(subsets)
    for i in range(subsets):
        x, y = (
            features[draws.choice(len(features), size, replace=False)].astype(np.float64)
            for features in (real, synthetic)
        )
        within = sum(_off_diagonal_sum(polynomial_kernel(z)) for z in (x, y)) / (size * (size - 1))
        values[i] = within - 2 * polynomial_kernel(x, y).mean()
    return KernelDistance(float(values.mean()), float(values.std(ddof=1) / np.sqrt(subsets)), size)


def _off_diagonal_sum(kernel: np.ndarray) -> float:
    return float(kernel.sum() - np.trace(kernel))


def inception_score(probabilities: np.ndarray) -> float:
    """`exp(mean_x KL(p(y|x) || p(y)))` over all images at once, natural logarithm (Salimans et al. 2016, Section 4).

    Args:
        probabilities (`np.ndarray`, shape `[n, classes]`): Rows that sum to 1.

    Returns:
        `float`: From 1 to the number of classes; higher is better.

    Raises:
        UsageError: Probabilities are not finite.
    """
    check_features(probabilities, "synthetic")
    rows = probabilities.astype(np.float64)
    return float(np.exp(special.rel_entr(rows, rows.mean(axis=0)).sum(axis=1).mean()))


def precision_recall(
    real: np.ndarray, synthetic: np.ndarray, *, k: int = NEIGHBOURS, device: str = "cpu"
) -> tuple[float, float]:
    """Improved precision and recall (Kynkäänniemi et al. 2019, Equations 1 to 3): the share of synthetic images that
    lie within some real image's distance to its k-th nearest other real image, and the share of real images for which
    the same holds the other way round.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        k (`int`, defaults to 3): Neighbours, the image itself not counted; code that counts it says 4.
        device (`str`, defaults to `"cpu"`): Where distances are computed.

    Returns:
        `tuple[float, float]`: Precision and recall, in [0, 1].

    Raises:
        UsageError: A set has no more than k images, or features are not finite.
    """
    for features, whose in ((real, "real"), (synthetic, "synthetic")):
        check_features(features, whose)
    if min(len(real), len(synthetic)) <= k:
        raise UsageError(
            f"Precision and recall need more than {k} real images and as many synthetic ones, of which there are "
            f"{len(synthetic)}: give more, or leave precision_recall out of --metrics."
        )
    first, second = _centred(real, synthetic, device=device)
    return _share_within(second, first, k), _share_within(first, second, k)


def squared_distances(points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Squared distances of all points `[n, D]` to all others `[m, D]`, in float64: by products of matrices, 15 times
    as fast as sums of squared differences and as exact, if the points lie around 0. What rounding leaves of equal
    points is 0."""
    points, others = points.double(), others.double()
    lengths = points.square().sum(dim=1)[:, None] + others.square().sum(dim=1)
    squared = torch.addmm(lengths, points, others.T, alpha=-2)
    return squared.masked_fill_(squared < ROUNDING * lengths, 0)


def _centred(real: np.ndarray, synthetic: np.ndarray, *, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64, less the mean of the real ones, as `squared_distances` needs them."""
    mean = real.mean(axis=0, dtype=np.float64)
    return torch.from_numpy(real - mean).to(device), torch.from_numpy(synthetic - mean).to(device)


def _share_within(points: torch.Tensor, manifold: torch.Tensor, k: int) -> float:
    radii = []
    for start in range(0, len(manifold), ROWS_AT_A_TIME):
        distances = squared_distances(manifold[start : start + ROWS_AT_A_TIME], manifold)
        distances.diagonal(offset=start).fill_(float("inf"))  # not its own neighbour
        radii.append(distances.topk(k, largest=False).values[:, -1])
    limit = torch.cat(radii) * (1 + ROUNDING)  # a copy is as far from the others as its original
    within = sum(
        int((squared_distances(points[start : start + ROWS_AT_A_TIME], manifold) <= limit).any(dim=1).sum())
        for start in range(0, len(points), ROWS_AT_A_TIME)
    )
    return within / len(points)


def nearest_neighbours(
    real: np.ndarray, synthetic: np.ndarray, count: int, *, device: str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest real images of each synthetic one.

    Args:
        real, synthetic (`np.ndarray`, shapes `[n, D]` and `[m, D]`): Features.
        count (`int`): Neighbours, n at most.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Indices of `real` (int64) and distances, both `[m, count]`, the nearest first.
    """
    reference, points = _centred(real, synthetic, device=device)
    found = [
        squared_distances(points[start : start + ROWS_AT_A_TIME], reference).topk(min(count, len(real)), largest=False)
        for start in range(0, len(points), ROWS_AT_A_TIME)
    ]
    return (
        torch.cat([part.indices for part in found]).cpu().numpy(),
        torch.cat([part.values for part in found]).sqrt().cpu().numpy(),
    )


def domain_discriminator(
    private: np.ndarray, public: np.ndarray, synthetic: np.ndarray, *, seed: int
) -> DomainJudgement:
    """Are synthetic images closer to the private set or to the public one? Logistic regression on standardised
    features is fitted to tell private from public, and then judges the synthetic images.

    Args:
        private, public, synthetic (`np.ndarray`, shapes `[n, D]`, `[p, D]` and `[m, D]`): Features.
        seed (`int`): Of the images drawn, as many from each domain, 5,000 at most, and of the five folds.

    Raises:
        UsageError: A domain has fewer than 10 images, or features are not finite.
    """
    for features, whose in ((private, "private"), (public, "public"), (synthetic, "synthetic")):
        check_features(features, whose)
    count = min(len(private), len(public), DOMAIN_IMAGES)
    if count < 2 * DOMAIN_FOLDS:
        raise UsageError(
            f"A domain discriminator needs {2 * DOMAIN_FOLDS} private images and as many public ones, of which there "
            f"are {len(public)}: give more."
        )
    draws = np.random.default_rng(seed)
    rows = np.concatenate([domain[draws.permutation(len(domain))[:count]] for domain in (private, public)])
    is_private = np.repeat([1, 0], count)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(DOMAIN_FOLDS, shuffle=True, random_state=seed)
    accuracy = float((cross_val_predict(model, rows, is_private, cv=folds) == is_private).mean())
    share = float(model.fit(rows, is_private).predict(synthetic).mean())
    return DomainJudgement(share, float(np.sqrt(share * (1 - share) / len(synthetic))), accuracy, count)
