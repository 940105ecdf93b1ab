# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-GAN: DP-SGD on a discriminator, and a generator that learns from it. No torch."""

from dataclasses import dataclass
from typing import ClassVar

from ..errors import UsageError
from ..queries.query import Query
from .flag import expert, flag
from .flags import DPSGDConfig
from .generator_flags import GeneratorFlags
from .judge import HasJudge
from .method import built


@dataclass
class DPGANConfig(HasJudge, GeneratorFlags, DPSGDConfig):
    """All flags of `training/train_dp_gan.py`."""

    _argument_group_name = "GAN"

    gan_loss: str = flag("logistic", "Loss of the two networks.", choices=("logistic", "hinge"))
    discriminator_channels: int = expert(16, "Channels of the discriminator's first convolution.")
    discriminator_steps: int = flag(5, "Discriminator steps for one of the generator.")
    fake_accuracy_floor: float | None = expert(
        None,
        "Below this rate of recognised generated images discriminator steps double; unset: never.",
        at_least=0, below=1,
    )  # fmt: skip
    generator_batch_size: int = expert(256, "Images that the generator draws per step.")
    generator_learning_rate: float = expert(1e-3, "Learning rate of the generator; its course is that of DP-SGD's.")
    input_noise: float = expert(
        0.0,
        "Largest standard deviation of noise that each image gets before the discriminator; pixels are in [-1, 1].",
        at_least=0,
    )  # fmt: skip
    mode_seeking: float = expert(0.0, "Weight of a term that keeps two images of a class apart.", at_least=0)

    method: ClassVar[str] = "dp_gan"
    noise_multiplicity: int = 1
    max_grad_norm: float = 1.0
    learning_rate: float = 1e-3
    adam_beta1: float = 0.5

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.judge

    @property
    def told(self) -> tuple[str, ...]:
        return (
            "gan_loss", "discriminator_channels", "discriminator_steps", "fake_accuracy_floor", "input_noise",
            "mode_seeking", *self.told_of_generator, "generator_batch_size", "generator_learning_rate",
            "learning_rate", "adam_beta1", "ema_decay",
        )  # fmt: skip

    def check(self) -> None:
        if self.noise_bands == "auto" and self.has_guarantee:
            raise UsageError(
                "--noise_bands auto takes the number with the least noise in a sum of steps, and here steps do not "
                "add up, for the generator moves what the discriminator learns: 8 were measured as worse "
                "(docs/methods/gans.md); leave it out, or give a number."
            )
        if self.noise_multiplicity != 1 and not self.input_noise:
            raise UsageError(
                f"--noise_multiplicity {self.noise_multiplicity} draws the same row as often, for the discriminator's "
                "loss draws nothing without --expert input_noise: leave it out."
            )


METHODS = (
    built(
        DPGANConfig, train="diffusers_dp.training.train_dp_gan:train", build="diffusers_dp.training.train_dp_gan:build"
    ),
)
