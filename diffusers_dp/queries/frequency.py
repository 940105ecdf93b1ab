"""Frequency features: the noisy mean of random Fourier features per class (FETA-Pro Equations 5 and 6)."""

import torch

from ..accounting.ledger import PrivacyLedger
from ..privacy.sensitive import SensitiveImages


class RandomFourierFeatures:
    """`phi(x) = [cos(w_1 x), ..., sin(w_1 x), ...] / sqrt(D / 2)`, of L2 norm 1 for every x (Rahimi & Recht 2007).

    The frequencies `w ~ N(0, I / length_scale^2)` come from a public seed and do not depend on data.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_features (`int`): D, even.
        length_scale (`float`): Of the Gaussian kernel that the features approximate, in units of pixel values in [0, 1].
        seed (`int`): Public.

    Attributes:
        facts (`dict`): `num_features`, `length_scale` and `seed`: an answer can be read with the same ones alone.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_features: int, length_scale: float, seed: int):
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.Size(image_shape).numel()
        self.num_features = num_features
        self.facts = {"num_features": num_features, "length_scale": length_scale, "seed": seed}
        self.frequencies = torch.randn(num_features // 2, pixels, generator=generator) / length_scale

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Images `[b, C, H, W]` in [0, 1] to features `[b, D]`."""
        projection = images.flatten(1) @ self.frequencies.to(images.device).T
        return torch.cat([projection.cos(), projection.sin()], dim=1) / (self.num_features // 2) ** 0.5


def noisy_frequency_features(
    images: SensitiveImages,
    features: RandomFourierFeatures,
    *,
    noise_multiplier: float,
    ledger: PrivacyLedger,
) -> torch.Tensor:
    """The noisy mean embedding: `(sum_i phi(x_i) (x) onehot(y_i) + N(0, sigma^2)) / N`. Sensitivity of the sum: 1.

    Args:
        features (`RandomFourierFeatures`): The feature map.
        noise_multiplier (`float`): sigma.

    Returns:
        `torch.Tensor` of shape `[classes, D]`, float32. A class keeps its weight n_c / N.

    Raises:
        BudgetExceeded: The answer would exceed the budget.
    """
    answer = images.noisy_sum(
        features,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        by_label=True,
        name="frequency_features",
        ledger=ledger,
        query={"normaliser": images.num_units, "num_features": features.num_features},
    )
    return answer[0] / images.num_units
