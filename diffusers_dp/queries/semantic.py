# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The semantic query of PrivImage (Li et al. 2024, Section 4.2): the public classes most similar to each sensitive
class, for pre-training on these only.

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .one_image import largest, one_by_one
from .perceptual import PublicNetwork
from .query import Query


if TYPE_CHECKING:
    import torch

STAND_IN_CLASSES = 10  # minimum number of public classes of the stand-in


@dataclass(frozen=True)
class PublicClassifier(PublicNetwork):
    """A classifier of public images; its outputs are the logits of its classes."""

    kind = "AutoModelForImageClassification"

    flag: str = "semantic_query_network"

    @property
    def num_classes(self) -> int:
        """Number of public classes."""
        return self.num_outputs

    def flag_of(self, what: str) -> str:
        return f"semantic_{what}"


@dataclass(frozen=True, kw_only=True)
class SemanticQuery(Query):
    """
    `sum_i onehots(the w public classes most similar to x_i) + N(0, sigma^2 w)`, for each class. An image adds w ones,
    so the sensitivity is sqrt(w).

    Args:
        classifier (`PublicClassifier`): Classifier that scores the similarity.
        classes_per_class (`int`): Number w of public classes per image.
    """

    name = "semantic_query"
    title = "semantic query"

    classifier: PublicClassifier
    classes_per_class: int

    @property
    def clip_norm(self) -> float:
        return math.sqrt(self.classes_per_class)

    def check_classes(self, num_classes: int, num_public: int) -> None:
        """Raises `UsageError` where there are too few public classes for these sensitive ones."""
        if (most := self.classes_per_class * num_classes) > num_public:
            raise UsageError(
                f"--expert semantic_classes_per_class={self.classes_per_class} asks for {most} public classes, and "
                f"there are {num_public}: give a smaller number."
            )

    @property
    def facts(self) -> dict[str, Any]:
        return {"classes_per_class": self.classes_per_class}

    @property
    def meaning(self) -> dict[str, Any]:
        return {**self.facts, **self.classifier.facts}

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [self.classifier.origin("semantic query network")]

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return largest(one_by_one(self.classifier, images), self.classes_per_class).to(images)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Returns noisy counts `[classes, public classes]`."""
        return answer[0]

    def stand_in(self) -> Any:
        import torch

        number = max(STAND_IN_CLASSES, 2 * self.classes_per_class)
        values = math.prod(self.classifier.image_shape)
        weights = torch.randn(values, number, generator=torch.Generator().manual_seed(0))

        def features(images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
            logits = one_by_one(lambda image: image.flatten(1) @ weights.to(image.device), images)
            return largest(logits, self.classes_per_class).to(images)

        return features


def semantic_classes(counts: "torch.Tensor", number: int) -> list[list[int]]:
    """
    Chooses public classes for each sensitive class, in order: the `number` largest that no earlier class has.

    Args:
        counts (`torch.Tensor` of shape `[classes, P]`): Noisy counts.
        number (`int`): Number w of public classes per sensitive class.
    """
    free, chosen = counts.clone(), []
    for row in range(len(counts)):
        found = free[row].topk(number).indices.tolist()
        free[:, found] = -math.inf
        chosen.append(found)
    return chosen
