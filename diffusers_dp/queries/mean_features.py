# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mean embeddings: the noisy mean per class of public image features, and of their squares (DP-MEPF, Harder et al.
2023, Section 3).

Nothing here loads torch before it is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .query import Query


if TYPE_CHECKING:
    import torch

    #: Map from images `[b, C, H, W]` in [0, 1] to features `[b, D]`.
    Embedding = Callable[[torch.Tensor], torch.Tensor]


class FeatureMap(Protocol):
    """
    A public, differentiable map from images to vectors of norm 1, or 0 if it detects nothing. Each row is a function
    of its own image.
    """

    @property
    def num_features(self) -> int:
        """Number D of features."""

    @property
    def facts(self) -> dict[str, Any]:
        """JSON facts that distinguish maps, for the receipt and stored answers."""

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        """Origins of external weights, for the receipt; no paths."""

    @property
    def is_here(self) -> bool:
        """Whether D is known without a download."""

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]`."""


class Untrained:
    """Base of a `FeatureMap` without external weights."""

    is_here = True

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return []


@dataclass(frozen=True, kw_only=True)
class MeanFeatures(Query):
    """
    `(sum_i phi(x_i) (x) onehot(y_i) + N(0, sigma^2)) / N`: phi1 of DP-MEPF. The sum has sensitivity 1.

    Each class keeps its weight n_c / N. Division by n_c, as in the public code of DP-MEPF, would publish n_c.

    Args:
        feature_map (`FeatureMap`): Feature map phi.
    """

    name = "mean_features"
    title = "mean features"

    feature_map: FeatureMap

    @property
    def num_values(self) -> int | None:
        return self.feature_map.num_features if self.feature_map.is_here else None

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_features": self.feature_map.num_features}

    @property
    def meaning(self) -> dict[str, Any]:
        return self.feature_map.facts

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return self.feature_map.public_inputs

    def normaliser(self, num_units: int, num_classes: int) -> int:
        return num_units

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return self.feature_map(images)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns the mean embedding `[classes, D]`, float32."""
        return answer[0] / num_units


@dataclass(frozen=True, kw_only=True)
class SecondMoments(MeanFeatures):
    """The mean of the squares of phi, scaled to norm 1: phi2. It is a separate query, also of sensitivity 1."""

    name = "second_moments"
    title = "second moments"

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return squares(self.feature_map(images))


@dataclass(frozen=True, kw_only=True)
class StoppingFeatures1(MeanFeatures):
    """phi1 of another network, to choose among generators (DP-MEPF, Section 4)."""

    name = "stopping_features_1"
    title = "stopping features (mean)"


@dataclass(frozen=True, kw_only=True)
class StoppingFeatures2(SecondMoments):
    """phi2 of the other network."""

    name = "stopping_features_2"
    title = "stopping features (squares)"


def unit(rows: "torch.Tensor") -> "torch.Tensor":
    """Scales rows `[b, D]` to norm 1; rows of zeros stay zero."""
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)


def squares(features: "torch.Tensor") -> "torch.Tensor":
    """Computes phi2 from phi1, both `[b, D]`."""
    return unit(features.square())


def moments(phi: "Embedding", number: int) -> "Embedding":
    """Returns a map from images to phi1, or to phi1 and phi2 concatenated, in the format of the joined answers.

    Args:
        number (`int`): Number of moments, 1 or 2.
    """
    import torch

    def both(images: torch.Tensor) -> torch.Tensor:
        first = phi(images)
        return torch.cat([first, squares(first)], 1)

    return phi if number == 1 else both
