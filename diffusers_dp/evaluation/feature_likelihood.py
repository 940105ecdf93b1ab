# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Feature Likelihood Divergence: the likelihood of real images under a density centred on the synthetic ones.

It detects copies, which Fréchet distances reward: a Gaussian centred on a training image shrinks to a spike there and
gives no likelihood to other images.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from .fidelity import squared_distances


LIKELIHOOD_IMAGES = 10_000
MOST_EPOCHS = 50
FEWEST_EPOCHS = 7
STILL_EPOCHS = 5  # the fit ends when the mean losses of these last epochs agree
STILL_LOSS = 5e-4
#: The protocol of a value states its fit, because versions until November 2026 always took 50 epochs.
FIT = "up to 50 epochs, ends when five losses are within 5e-4"
LEARNING_RATE = 0.5
POINTS_PER_STEP = 10_000
ROWS_AT_A_TIME = 100  # against 10,000 centres: 4 MB, which fit into a processor's cache
NEAREST_OFFSET = 1e-3  # because a squared distance of 0 has no logarithm
#: e^-80 is negligible beside 1, and computing with smaller (denormal) numbers takes ten times as long.
SMALLEST_LOG_SHARE = -80.0
LOG_VARIANCES = (-40.0, 40.0)
#: The base component of a point is centred a tenth of the way from the mean of all points to the point.
BASE_SHRINKAGE = 0.9**2


def feature_likelihood_divergence(
    train: np.ndarray, test: np.ndarray, synthetic: np.ndarray, *, seed: int, device: str = "cpu"
) -> float:
    """Computes FLD (Jiralerspong et al. 2023, Section 3) as in the published tables: evaluated on the training images,
    with the test images only for normalisation and baseline.

    Features are normalised to mean 0 and variance 1 on the test images (a feature that is constant there is only
    centred). The density is `p(x) = 1/m sum_j N(x; s_j, v_j I)`, with a centre s_j at each of at most 10,000 synthetic
    images and variances v_j fitted to the training images by `fit_log_variances`. With `NLL = -mean log p / D`, the
    value is `100 (NLL - baseline)`. The baseline is the NLL of the test images under another density. It is centred on
    one part of the training images (as many as synthetic ones, at most half) and fitted to the rest.

    Args:
        train, test, synthetic (`np.ndarray`, shapes `[n, D]`, `[t, D]` and `[m, D]`): Features of real training
            images, of real test images and of synthetic images.
        seed (`int`): Seed of the choice of synthetic images, of the parts and of the order of points.
        device (`str`, defaults to `"cpu"`): Device of the computation, which needs 4 n m bytes: 2.2 GB for 55,000 and
            10,000 images.

    Returns:
        `float`: FLD, lower is better: near 0 for images as good as real ones, negative if they are better, thousands
            for copies.
    """
    draws = np.random.default_rng(seed)
    # The computed deviation of a constant may differ from 0, in float32 and in float64.
    mean, deviation = test.mean(axis=0, dtype=np.float64), test.std(axis=0, ddof=1, dtype=np.float64)
    deviation[test.max(axis=0) == test.min(axis=0)] = 1
    standard = [torch.from_numpy((x - mean) / deviation).to(device, torch.float32) for x in (train, test, synthetic)]
    points, held_out, centres = standard
    centres = centres[torch.from_numpy(draws.permutation(len(centres))[:LIKELIHOOD_IMAGES]).to(device)]
    points = points[torch.from_numpy(draws.permutation(len(points))).to(device)]
    value = negative_log_likelihood(points, centres, fit_log_variances(points, centres))
    part = min(len(centres), len(points) // 2)
    base_variances = fit_log_variances(points[part:], points[:part])
    return 100 * (value - negative_log_likelihood(held_out, points[:part], base_variances))


def fit_log_variances(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Fits one variance per centre to maximise the likelihood of `points`, as the authors' library does.

    The fit starts from the best variance for each centre's nearest point and takes Adam at rate 0.5 over batches of
    10,000. It ends after 50 epochs, or after the seventh or a later one whose mean loss is within 5e-4 of those of the
    four epochs before. A base component `N(x; c + 0.1 (x - c), v_0 I)`, with c the mean of the points and a fitted
    variance, keeps the likelihood of points far from all centres above 0. It is not part of the density.

    Args:
        points (`torch.Tensor`, shape `[n, D]`, float32): Points in random order.
        centres (`torch.Tensor`, shape `[m, D]`, float32): Centres of the density.

    Returns:
        `torch.Tensor`: Logarithms of the variances, shape `[m]`, in [-40, 40].
    """
    dimension = points.shape[1]
    # Kept for all epochs because they take most of the time.
    wide = centres.double()
    distances = [squared_distances(rows, wide).float() for rows in points.split(ROWS_AT_A_TIME)]
    to_base = (BASE_SHRINKAGE * (points - points.mean(dim=0)).square().sum(dim=1)).split(ROWS_AT_A_TIME)
    nearest = torch.stack([rows.amin(dim=0) for rows in distances]).amin(dim=0)
    log_variances = ((nearest + NEAREST_OFFSET) / dimension).log()
    base = torch.zeros((), device=points.device)
    optimizer = torch.optim.Adam([log_variances, base], lr=LEARNING_RATE)
    per_step = POINTS_PER_STEP // ROWS_AT_A_TIME
    losses: list[float] = []
    while len(losses) < MOST_EPOCHS and not _still(losses):
        of_steps = []
        for start in range(0, len(distances), per_step):
            step = slice(start, start + per_step)
            loss, log_variances.grad, base.grad = _loss_and_gradients(
                distances[step], to_base[step], log_variances, base, dimension
            )
            optimizer.step()
            log_variances.clamp_(*LOG_VARIANCES)
            of_steps.append(loss)
        losses.append(float(np.mean(of_steps)))
    return log_variances


def _still(losses: Sequence[float]) -> bool:
    """Whether the fit ends after epochs of these mean losses."""
    last = losses[-STILL_EPOCHS:]
    return len(losses) >= FEWEST_EPOCHS and max(abs(loss - last[-1]) for loss in last) < STILL_LOSS


def negative_log_likelihood(points: torch.Tensor, centres: torch.Tensor, log_variances: torch.Tensor) -> float:
    """Computes `-mean log p(x) / D` (natural logarithm) of points `[n, D]` under the mixture with centres `[m, D]` and
    log variances `[m]`."""
    wide = centres.double()
    total = sum(
        float(
            _log_densities(squared_distances(rows, wide).float(), log_variances, points.shape[1])
            .logsumexp(dim=1)
            .sum(dtype=torch.float64)
        )
        for rows in points.split(ROWS_AT_A_TIME)
    )
    return -(total / len(points) - math.log(len(centres))) / points.shape[1]


def _log_densities(distances: torch.Tensor, log_variances: torch.Tensor, dimension: int) -> torch.Tensor:
    """Computes `log N(x; s, v I)` from squared distances `[n, m]` and log variances `[m]`."""
    constant = -dimension / 2 * (log_variances + math.log(2 * math.pi))
    return torch.addcmul(constant, distances, -0.5 * torch.exp(-log_variances))


def _loss_and_gradients(
    distances: Sequence[torch.Tensor],
    to_base: Sequence[torch.Tensor],
    log_variances: torch.Tensor,
    base: torch.Tensor,
    dimension: int,
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Computes `-mean log (p(x) + base) / D` and its gradients with respect to the log variances `[m]` and the base's.

    With r the share of a component in the likelihood of x, `d/dlog v = -r (|x - s|^2 / (2 v) - D / 2)`. The explicit
    formula needs a third of autograd's memory."""
    of_centres, of_base, count = torch.zeros_like(log_variances), torch.zeros_like(base), 0
    loss = torch.zeros_like(base, dtype=torch.float64)
    weight = 0.5 * torch.exp(-log_variances)
    for rows, base_rows in zip(distances, to_base, strict=True):
        logs = _log_densities(rows, log_variances, dimension).sub_(math.log(len(log_variances)))
        base_logs = _log_densities(base_rows, base, dimension)
        largest = logs.amax(dim=1)
        relative = logs.sub_(largest[:, None]).clamp_(min=SMALLEST_LOG_SHARE).exp_()
        total = torch.logaddexp(largest + relative.sum(dim=1).log(), base_logs)
        loss -= total.sum(dtype=torch.float64)
        factor = (largest - total).exp()  # factor times relative is the share r
        of_centres -= dimension / 2 * (factor @ relative)
        of_centres += weight * (factor @ relative.mul_(rows))
        base_shares = (base_logs - total).exp()
        of_base += (base_shares * (0.5 * torch.exp(-base) * base_rows - dimension / 2)).sum()
        count += len(rows)
    values = count * dimension
    return float(loss) / values, -of_centres / values, -of_base / values
