# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The complexity of a curriculum's features: entropy and texture complexity, as in the FETA-Pro paper's Table 2.

The curriculum goes from easy to hard: spatial features (noisy central images), frequency features (images of the
auxiliary generator fitted to them), images. The inputs here are noisy answers or images drawn from a released model,
so this costs no privacy. (The paper's third row uses the original images, which would cost privacy.)

Only the order of the rows is comparable with the paper. It describes entropy in words (Appendix C.3: grey, histogram
of 256 values, Shannon) and gives no formula for texture complexity. Its entropies, 1.2 for CIFAR-10, are not in bits;
grey CIFAR-10 images have 7.0 bits.
"""

import numpy as np
from numpy.typing import NDArray

from .images import ImageSet
from .measurement import Measurement


DRAWN_IMAGES = "synthetic images"  # name of the images in the report, beside the curriculum's features
GREY_WEIGHTS = (0.299, 0.587, 0.114)  # for red, green, blue: ITU-R BT.601
NUM_LEVELS = 256
TEXTURE_LEVELS = 8  # few enough that the 64 pairs of levels occur often in an image of a few hundred pixels


def grey_levels(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Converts images of uint8, `[N, C, H, W]`, C 1 or 3, to grey levels 0 to 255, `[N, H, W]`."""
    if images.shape[1] == 1:
        return images[:, 0].astype(np.int64)
    return np.rint(np.tensordot(images, GREY_WEIGHTS, axes=(1, 0))).astype(np.int64)


def entropy(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Computes the Shannon entropy of each image's grey levels, `-sum_i p_i log2 p_i` over the 256 levels i (FETA-Pro,
    Appendix C.3).

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): Images, C is 1 or 3.

    Returns:
        `np.ndarray` of shape `[N]`: Entropies in bits, from 0 (constant) to the smaller of 8 and `log2(H W)`.
    """
    return _entropy(_histograms(grey_levels(images).reshape(len(images), -1), NUM_LEVELS))


def texture_complexity(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Computes the entropy of each image's grey-level co-occurrence matrix (Haralick et al. 1973, feature 9), which
    measures irregular neighbourhoods.

    Grey levels are divided into 8 equal bins; pairs of horizontal and vertical neighbours are counted in both
    directions.

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): Images, C is 1 or 3; at least two pixels.

    Returns:
        `np.ndarray` of shape `[N]`: Entropies in bits, from 0 (constant) to 6.
    """
    levels = grey_levels(images) * TEXTURE_LEVELS // NUM_LEVELS
    pairs = np.concatenate(
        [_pairs(levels[:, :, :-1], levels[:, :, 1:]), _pairs(levels[:, :-1], levels[:, 1:])], axis=1
    )
    counts = _histograms(pairs, TEXTURE_LEVELS**2).reshape(-1, TEXTURE_LEVELS, TEXTURE_LEVELS)
    return _entropy((counts + counts.transpose(0, 2, 1)).reshape(len(images), -1))


def feature_complexity(features: dict[str, ImageSet]) -> list[Measurement]:
    """Computes mean entropy and mean texture complexity of each set, in order: the rows of Table 2.

    Args:
        features (`dict[str, ImageSet]`): Image sets by name, for example `spatial` (restored noisy central images),
            `frequency` (images of the auxiliary generator) and `images` (drawn from the release). Pass only noisy
            releases or post-processing of these.

    Returns:
        `list[Measurement]`: Two measurements for each set, with the standard error of the mean over images, unless
            there is only one image.
    """
    found = []
    for name, images in features.items():
        for metric, values in (
            ("entropy", entropy(images.images)),
            ("texture_complexity", texture_complexity(images.images)),
        ):
            protocol = {"features": name, "num_images": len(images), "unit": "bits", "origin": images.origin}
            if metric == "texture_complexity":
                protocol["levels"] = TEXTURE_LEVELS
            error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
            found.append(Measurement(metric, float(values.mean()), protocol, error))
    return found


def _pairs(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Encodes each pair of neighbours as one number, shape `[N, pairs]`."""
    return (first * TEXTURE_LEVELS + second).reshape(len(first), -1)


def _histograms(values: NDArray[np.int64], num_values: int) -> NDArray[np.int64]:
    """Counts 0 to `num_values` - 1 in each row, shape `[N, num_values]`."""
    rows = np.arange(len(values))[:, None] * num_values
    return np.bincount((rows + values).ravel(), minlength=len(values) * num_values).reshape(len(values), num_values)


def _entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    shares = counts / counts.sum(axis=1, keepdims=True)
    return -np.where(shares > 0, shares * np.log2(np.where(shares > 0, shares, 1)), 0).sum(axis=1) + 0.0  # no -0
