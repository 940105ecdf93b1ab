# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The judge and its features: a linear classifier on normalised scattering coefficients (Tramer and Boneh, ICLR 2021,
Section 3) or on what a public network sees. Where draws lack high frequencies, images are low-passed first: what it
learns from, and what it judges, must look alike."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from ..errors import IntegrityError
from ..files.untrusted_files import regular_size
from ..queries.efficientnet import EFFICIENTNET, WEIGHTS_SHA256, EfficientNetFeatures, refuse_missing_network
from ..queries.moments import Frequencies, all_frequencies, num_coefficients
from ..queries.scattering import SCATTERING, Scattering


LEVELS, ANGLES, CHANNELS_OF_GROUP = 2, 8, 9
#: Temperature of a new judge's labels by channels, compared on training images: in colour, where draws look less like
#: images, nearly even labels taught most; in grey 2 and 4 taught alike. A file keeps its own.
TEMPERATURE, MOST_TEMPERATURE = {1: 2.0, 3: 8.0}, 100.0
BALANCING_STEPS, BALANCING_RATE, LARGEST_BIAS = 200, 0.5, 30.0
LEAST_SHARE = 1e-9  # of a class
IMAGES_AT_ONCE, VALUES_AT_ONCE = 64, 2**22  # the most of them: maps take 80 bytes of memory for each of their values
MOST_WAVE_VALUES, MOST_HEADER = 200_000_000, 100_000  # as training has; bytes
MOST_WEIGHT = 1e6  # of a stranger: training reaches 1e5, and larger ones could make infinite logits


class JudgeFeatures:
    """
    A public map from an image to normalised maps, each record by itself.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_frequencies (`int`): See `Frequencies`. All of them are the image itself.
        kind (`str`): Scattering, or the name of a public network.
    """

    def __init__(self, image_shape: tuple[int, ...], num_frequencies: int, kind: str = SCATTERING):
        self.image_shape, self.num_frequencies, self.kind = tuple(image_shape), num_frequencies, kind
        low_passes = num_coefficients(self.image_shape, num_frequencies) < math.prod(self.image_shape)
        self.waves = Frequencies(self.image_shape, num_frequencies).waves if low_passes else None
        self._scattering, self._network = Scattering(LEVELS, ANGLES), EfficientNetFeatures(self.image_shape)
        height, width = (math.ceil(math.ceil(side / 2) / 2) for side in self.image_shape[1:])
        channels = self.image_shape[0] * (1 + LEVELS * ANGLES + LEVELS * (LEVELS - 1) // 2 * ANGLES**2)
        self.shape = (channels, height, width) if kind == SCATTERING else (self._network.num_features, 1, 1)
        values = max(math.prod(self.shape), math.prod(self.image_shape))
        self.images_at_once = max(1, min(IMAGES_AT_ONCE, VALUES_AT_ONCE // values))

    @property
    def of_network(self) -> dict[str, str]:
        """What else tells its features apart, for the file."""
        return {} if self.kind == SCATTERING else {"weights_sha256": WEIGHTS_SHA256}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Maps images `[b, C, H, W]` in [-1, 1] to rows `[b, *shape]`."""
        if self.waves is not None:
            waves = self.waves.to(images)
            images = (images.flatten(1) @ waves.T @ waves).unflatten(1, self.image_shape)
        if self.kind != SCATTERING:
            parts = self._network.parts(images / 2 + 0.5)  # at least 0; roots, so that few of them do not decide
            return torch.cat([F.layer_norm(part.sqrt(), part.shape[1:]) for part in parts], 1).unflatten(1, self.shape)
        maps = self._scattering(images / 2 + 0.5).unflatten(1, self.shape)
        return F.group_norm(maps, self.shape[0] // CHANNELS_OF_GROUP)


def new_network(features: JudgeFeatures, num_classes: int) -> nn.Linear:
    """The classifier before its training: zeros, from which no class is more probable."""
    network = nn.Linear(math.prod(features.shape), num_classes)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


@dataclass(frozen=True)
class LabelJudge:
    """
    What labels drawn images. All of it is public after its noise.

    Args:
        features (`JudgeFeatures`): What it looks at.
        network (`nn.Linear`): Trained.
        biases (`torch.Tensor` of shape `[classes]`): Added to the logits of a label; see `balanced`.
        temperature (`float`): What logits are divided by before.
    """

    features: JudgeFeatures
    network: nn.Linear
    biases: torch.Tensor
    temperature: float

    @torch.no_grad()
    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        network, parts = self.network.cpu(), images.cpu().split(self.features.images_at_once)
        found = [network(self.features(part.float() / 127.5 - 1).flatten(1)) / self.temperature for part in parts]
        return torch.cat(found) if found else self.biases.new_zeros(0, len(self.biases))

    def label(self, images: torch.Tensor) -> torch.Tensor:
        """Probabilities of classes, float32 `[n, classes]`, as a column of float16 keeps them, of images, uint8
        `[n, C, H, W]`."""
        return (self._logits(images) + self.biases).softmax(1).half().float()

    def balanced(self, images: torch.Tensor, labels: torch.Tensor) -> "LabelJudge":
        """With biases so that the mean probabilities of drawn images are the shares in which classes were drawn.

        Args:
            images (`torch.Tensor` of uint8, shape `[n, C, H, W]`): Draws, of a public seed.
            labels (`torch.Tensor` of int64, shape `[n]`): The classes that were drawn. One that never was has a finite
                bias as well, and next to no probability.
        """
        logits, biases = self._logits(images), torch.zeros_like(self.biases)
        shares = (labels.bincount(minlength=len(biases)) / max(1, len(labels))).clamp_min(LEAST_SHARE)
        for _ in range(BALANCING_STEPS):
            mean = (logits + biases).softmax(1).mean(0).clamp_min(LEAST_SHARE)
            biases = biases - BALANCING_RATE * (mean / shares).log()
            biases = (biases - biases.mean()).clamp(-LARGEST_BIAS, LARGEST_BIAS)
        return replace(self, biases=biases)

    def save(self, path: Path) -> None:
        tensors = {"weight": self.network.weight, "bias": self.network.bias, "class_biases": self.biases}
        features, about = self.features, {"temperature": str(self.temperature)}
        about |= {"features": features.kind, "num_frequencies": str(features.num_frequencies), **features.of_network}
        kept = {name: each.detach().cpu().float().contiguous() for name, each in tensors.items()}
        save_file(kept, path, metadata=about)


def load_judge(path: Path, image_shape: tuple[int, ...], num_classes: int) -> LabelJudge:
    """Reads a judge, maybe a stranger's: numbers of the shapes that the images of its release ask for, and no others.

    Raises:
        IntegrityError: It is none of this library, or of other images or classes.
        UsageError: It looks through a network that is not installed.
    """
    try:
        regular_size(path)  # opening a pipe waits
        with open(path, "rb") as content:
            if int.from_bytes(content.read(8), "little") > MOST_HEADER:
                raise ValueError
        with safe_open(path, "pt") as file:
            about, names = file.metadata() or {}, set(file.keys())
            number, kind, temperature = int(about["num_frequencies"]), about["features"], float(about["temperature"])
            fits = 0 < number * math.prod(image_shape) <= MOST_WAVE_VALUES or number == all_frequencies(image_shape)
            known = kind in (SCATTERING, EFFICIENTNET) and image_shape[0] in TEMPERATURE
            if not (known and fits and 1 / MOST_TEMPERATURE <= temperature <= MOST_TEMPERATURE) or num_classes < 2:
                raise ValueError
            features = JudgeFeatures(image_shape, number, kind)
            if any(about[name] != value for name, value in features.of_network.items()):
                raise ValueError
            parts = {name: file.get_slice(name) for name in names}
            found = {name: tuple(part.get_shape()) for name, part in parts.items()}  # they fill the file
            row, width = (num_classes,), math.prod(features.shape)
            wanted = {"weight": (*row, width), "bias": row, "class_biases": row}
            if found != wanted or any(part.get_dtype() != "F32" for part in parts.values()):
                raise ValueError
            tensors = {name: file.get_tensor(name) for name in names}
        if not all(bool((each.abs() <= MOST_WEIGHT).all()) for each in tensors.values()):  # NaN neither
            raise ValueError
    except (OSError, SafetensorError, LookupError, TypeError, ValueError):
        raise IntegrityError(f"{path} is no judge of images of this release: it is not opened.") from None
    if kind == EFFICIENTNET:
        refuse_missing_network()
    network, biases = new_network(features, num_classes), tensors.pop("class_biases")
    network.load_state_dict(tensors)
    return LabelJudge(features, network, biases, temperature)
