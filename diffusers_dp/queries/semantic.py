# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The semantic query of PrivImage (Li et al. 2024, Section 4.2): the public classes most similar to each sensitive
class, for pre-training on these only.

Nothing here loads torch before it is used.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, first_line
from .one_image import largest, one_by_one
from .perceptual import as_expected, hash_weights, load_network, network_facts, network_origin, preprocessing_of
from .query import Query


if TYPE_CHECKING:
    import torch

STAND_IN_CLASSES = 10  # minimum number of public classes of the stand-in


@dataclass(frozen=True)
class PublicClassifier:
    """
    A classifier of public images from `transformers`, loaded from safetensors, in evaluation mode. No code from its
    repository is run.

    Args:
        network (`str`): Folder of `save_pretrained`, or Hub id. It must not have been trained on the sensitive images.
        image_shape (`tuple[int, int, int]`): (C, H, W) of the images; grey channels are repeated for RGB networks.
        resolution (`int`, *optional*): Side length to which images are resized for the network; defaults to their own.
        flag (`str`): Flag of the network, for messages.

    Raises:
        UsageError: On first use: the network does not exist, or does not accept such images.
    """

    network: str
    image_shape: tuple[int, ...]
    resolution: int | None = None
    flag: str = "semantic_query_network"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # other processes load the network

    @property
    def num_classes(self) -> int:
        """Number of public classes."""
        return int(self._loaded[0].config.num_labels)

    @cached_property
    def sha256(self) -> str:
        """Hash of its weights."""
        return hash_weights(self._loaded[0])

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to logits `[b, num_classes]`."""
        network, channels, mean, std = self._loaded
        seen = as_expected(images, channels, mean, std, self.resolution)
        logits: torch.Tensor = network.to(images.device)(pixel_values=seen).logits
        return logits

    @property
    def facts(self) -> dict[str, Any]:
        """JSON values that tell two classifiers apart, for stored answers."""
        _, _, mean, std = self._loaded
        return network_facts(self.network, self.sha256, mean, std, self.resolution)

    @cached_property
    def _loaded(self) -> Any:
        import torch

        network = load_network(self.network, self.flag, kind="AutoModelForImageClassification")
        network.eval().requires_grad_(False)
        channels = getattr(network.config, "num_channels", 3)
        if self.image_shape[0] not in (1, channels):
            raise UsageError(f"{self.network} takes images of {channels} channels; choose another.", field=self.flag)
        sides = self.image_shape[1:] if self.resolution is None else (self.resolution, self.resolution)
        try:  # on a blank image, so that no error of sensitive images is caught
            with torch.no_grad():
                network(pixel_values=torch.zeros(1, channels, *sides))
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{self.network} does not accept images of {'x'.join(map(str, (channels, *sides)))} "
                f"({first_line(error)}): give --semantic_resolution, or another network.",
                field=self.flag,
            ) from None
        return network, channels, *preprocessing_of(self.network, channels)


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

    @property
    def facts(self) -> dict[str, Any]:
        return {"classes_per_class": self.classes_per_class}

    @property
    def meaning(self) -> dict[str, Any]:
        return {**self.facts, **self.classifier.facts}

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [network_origin("semantic query network", self.classifier.network, self.classifier.sha256)]

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
