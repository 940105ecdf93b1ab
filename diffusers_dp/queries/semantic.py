# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The semantic query of PrivImage (Li et al. 2024, Section 4.2): which public classes the sensitive images of a class
look like, so that a model is pre-trained on these alone.

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, first_line
from .one_image import largest, one_by_one
from .perceptual import hash_weights, load_network, network_origin, preprocessing_of
from .query import Query


if TYPE_CHECKING:
    import torch

STAND_IN_CLASSES = 10  # public classes of the stand-in, at least


@dataclass(frozen=True)
class PublicClassifier:
    """
    A classifier of public images, of `transformers`, from safetensors, in evaluation mode. No code of its repository
    is run.

    Args:
        network (`str`): Folder of `save_pretrained`, or Hub id. It must not have seen the sensitive images.
        image_shape (`tuple[int, int, int]`): (C, H, W) of the images; grey ones are repeated where it takes RGB.
        flag (`str`): Of the network, for messages.

    Raises:
        UsageError: When first used: there is no such network, or it takes no such images.
    """

    network: str
    image_shape: tuple[int, ...]
    flag: str = "semantic_query_network"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # other processes load it themselves

    @property
    def num_classes(self) -> int:
        """Public classes."""
        return int(self._loaded[0].config.num_labels)

    @cached_property
    def sha256(self) -> str:
        """Of its weights."""
        return hash_weights(self._loaded[0])

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Images `[b, C, H, W]` in [0, 1] to logits `[b, num_classes]`."""
        network, channels, mean, std = self._loaded
        seen = images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images
        seen = (seen - mean.to(images.device)) / std.to(images.device)
        logits: torch.Tensor = network.to(images.device)(pixel_values=seen).logits
        return logits

    @cached_property
    def _loaded(self) -> Any:
        import torch

        network = load_network(self.network, self.flag, kind="AutoModelForImageClassification")
        network.eval().requires_grad_(False)
        channels = getattr(network.config, "num_channels", 3)
        if self.image_shape[0] not in (1, channels):
            raise UsageError(f"--{self.flag} {self.network} takes images of {channels} channels; choose another.")
        try:  # on a blank: nothing is caught where sensitive images pass
            with torch.no_grad():
                network(pixel_values=torch.zeros(1, channels, *self.image_shape[1:]))
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"--{self.flag} {self.network} takes no images of {'x'.join(map(str, self.image_shape))} "
                f"({first_line(error)}): give another."
            ) from None
        return network, channels, *preprocessing_of(self.network, channels)


@dataclass(frozen=True, kw_only=True)
class SemanticQuery(Query):
    """
    `sum_i onehots(the w public classes that x_i looks most like) + N(0, sigma^2 w)`, for each class. An image adds w
    ones, so the sensitivity is sqrt(w).

    Args:
        classifier (`PublicClassifier`): Says what an image looks like.
        classes_per_class (`int`): w.
    """

    name = "semantic_query"
    title = "semantic query"

    classifier: PublicClassifier
    classes_per_class: int

    @property
    def clip_norm(self) -> float:
        return math.sqrt(self.classes_per_class)

    @property
    def facts(self) -> dict[str, Any]:
        return {"classes_per_class": self.classes_per_class}

    @property
    def meaning(self) -> dict[str, Any]:
        return {**self.facts, "weights_sha256": self.classifier.sha256}

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [network_origin("semantic query network", self.classifier.network, self.classifier.sha256)]

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        return largest(one_by_one(self.classifier, images), self.classes_per_class).to(images)

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Noisy counts `[classes, public classes]`."""
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
    The public classes of each sensitive one: in the order of the classes, the `number` largest that no class before
    has.

    Args:
        counts (`torch.Tensor` of shape `[classes, P]`): Noisy.
        number (`int`): w; there are as many public classes for each class.
    """
    free, chosen = counts.clone(), []
    for row in range(len(counts)):
        found = free[row].topk(number).indices.tolist()
        free[:, found] = -math.inf
        chosen.append(found)
    return chosen
