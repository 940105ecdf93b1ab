# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mean embeddings: one question about features of the images, and a generator that is fitted to the noisy answer. No
torch."""

import math
from dataclasses import dataclass
from typing import ClassVar

from ..errors import UsageError
from ..queries.frequency import FrequencyFeatures
from ..queries.query import Query
from .flag_groups import NetworkFlags, flag, run_folder
from .flags import TrainingConfig


#: What `--features` may be: random Fourier features (DP-MERF).
FEATURES = ("rff",)


@dataclass
class MeanEmbeddingFlags:
    """The features that are asked for, and the generator that is fitted to their noisy mean."""

    _argument_group_name = "mean embedding"

    features: str = flag("rff", f"Features of an image: one of {' | '.join(FEATURES)}.")
    num_features: int = flag(4000, "Random Fourier features: half cosines, half sines, so an even number.")
    length_scale: float | None = flag(
        None,
        "Frequencies are drawn from N(0, 1/scale^2), for images in [0, 1]; unset: sqrt(channels * height * width) / "
        "4.",
    )
    features_noise_multiplier: float | None = flag(
        None, "Noise multiplier of the question; unset: what the whole budget asks for."
    )
    generator_steps: int = flag(500, "Steps that fit the generator to the noisy mean embedding.")
    generator_batch_size: int = flag(200, "Images that the generator draws per step.")
    generator_learning_rate: float = flag(3e-3, "Learning rate of the generator; falls to 0 linearly.")


@dataclass
class MeanEmbeddingConfig(MeanEmbeddingFlags, NetworkFlags, TrainingConfig):
    """All flags of `training/train_mean_embedding.py`."""

    method: ClassVar[str] = "dp_merf"
    output_dir: str = run_folder("runs/dp_merf")

    @property
    def embedding_query(self) -> FrequencyFeatures:
        """The mean embedding of each class (Harder et al. 2021, Section 4)."""
        return FrequencyFeatures(
            image_shape=self.image_shape, num_features=self.num_features, seed=self.seed, flags="features",
            length_scale=self.length_scale or math.prod(self.image_shape) ** 0.5 / 4,
            noise_multiplier=self.features_noise_multiplier,
        )  # fmt: skip

    @property
    def queries(self) -> tuple[Query, ...]:
        return (self.embedding_query,)

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        return ("generator_batch_size",)

    def check(self) -> None:
        if self.features not in FEATURES:
            raise UsageError(f"--features '{self.features}' is unknown; give one of {' | '.join(FEATURES)}.")
        if self.num_features % 2:
            raise UsageError(f"--num_features is {self.num_features}; give an even number (cosines and sines).")
