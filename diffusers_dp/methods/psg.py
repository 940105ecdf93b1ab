# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Set Generation: a few images of each class whose gradients match noisy gradients of the sensitive ones. The
release is a data set. No torch."""

from dataclasses import dataclass
from typing import ClassVar

from ..errors import UsageError
from .flag import expert, flag
from .flags import DPSGDConfig
from .method import built


IMAGE_MOMENTUM = 0.5  # of plain gradient descent of the images, as published
GROUPS = 8  # of the group normalisation, as `models.private_set` has them


@dataclass
class PSGConfig(DPSGDConfig):
    """All flags of `training/train_psg.py`."""

    _argument_group_name = "private set"

    images_per_class: int = flag(10, "Synthetic images of each class; the release has no others.")
    classifier_width: int = expert(32, f"Channels of the random networks, a multiple of {GROUPS}.")
    matched_layers: str = flag(
        "all",
        "Layers of the random networks whose gradients are matched; the last one's have few numbers, and less noise.",
        choices=("all", "last"),
    )  # fmt: skip
    image_optimizer: str = expert(
        "adam", f"Optimizer of the images; sgd has a momentum of {IMAGE_MOMENTUM:g}, as published.",
        choices=("adam", "sgd"),
    )  # fmt: skip
    steps_per_network: int = flag(100, "DP-SGD steps between two random networks.")
    image_steps: int = flag(5, "Steps of the images after each noisy gradient, all but one towards earlier gradients.")
    remembered_gradients: int = expert(100, "Noisy gradients, the last ones, that such steps choose from.")
    network_learning_rate: ClassVar[float] = 0.01  # of the networks on the synthetic images, as published
    network_steps: int = flag(10, "Steps of a network on the synthetic images, after each noisy gradient.", at_least=0)

    method: ClassVar[str] = "psg"
    releases_images: ClassVar[bool] = True
    made_by_class = ("images_per_class",)
    noise_multiplicity: int = 1
    max_grad_norm: float = 0.1
    learning_rate: float = 0.1
    ema_decay: float = 0.0

    told = (
        "images_per_class", "classifier_width", "matched_layers", "image_optimizer", "steps_per_network",
        "image_steps", "remembered_gradients", "network_steps", "network_learning_rate", "learning_rate", "seed",
    )  # fmt: skip

    def check(self) -> None:
        if self.image_optimizer != "adam" and self.changed_adam:
            raise UsageError(
                f"--{min(self.changed_adam)} has no effect with --expert image_optimizer=sgd; leave it out."
            )
        if self.classifier_width % GROUPS:
            raise UsageError(f"--expert classifier_width is {self.classifier_width}; give a multiple of {GROUPS}.")
        if self.image_shape[1] < 8:
            raise UsageError(f"--resolution {self.image_shape[1]} is too small for three halvings; give 8 or more.")
        if self.noise_bands != "1":
            raise UsageError(
                "--noise_bands cancels noise in a sum of steps, and networks change here from step to step: leave it "
                "out."
            )


METHODS = (
    built(PSGConfig, train="diffusers_dp.training.train_psg:train", build="diffusers_dp.training.train_psg:build"),
)
