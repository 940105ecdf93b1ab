# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of a generator that draws in one call, of what becomes of it, and of a model of released images."""

from dataclasses import dataclass

from .flag import expert, flag
from .flag_groups import NetworkFlags
from .flags import OrdinaryTraining, TrainingConfig


DIFFUSION_BATCH_SIZE = 128  # of a model that learns drawn images: that of all measured rows


@dataclass
class GeneratorFlags(NetworkFlags, TrainingConfig):
    """What kind of generator is trained, and how it becomes a release."""

    _argument_group_name = "generator"

    generator: str = flag(
        "one_step",
        "'one_step': a UNet that is called once, and released. 'residual': BigGAN-like; a diffusion model learns its "
        "images and is released.",
        choices=("one_step", "residual"),
    )  # fmt: skip
    generator_channels: int = expert(32, "Base channels of the residual generator.")
    num_generated_images: int = expert(20_000, "Images that the residual generator draws for the diffusion model.")
    diffusion_steps: int = flag(700, "Steps of that model on them.")

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        """With the model that is released in a residual generator's place."""
        of_images = OrdinaryTraining(self.diffusion_steps, DIFFUSION_BATCH_SIZE, network=self.network)
        return (*super().ordinary_training, *((of_images,) if self.generator == "residual" else ()))

    @property
    def told_of_generator(self) -> tuple[str, ...]:
        """What the receipt states of these flags."""
        of_images = ("generator_channels", "num_generated_images", "diffusion_steps")
        return ("generator", *(of_images if self.generator == "residual" else ()))

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        return ("generator_batch_size", *(("num_generated_images",) if self.generator == "residual" else ()))


@dataclass
class ResultFlags(NetworkFlags, TrainingConfig):
    """A model of the released images."""

    _argument_group_name = "model of the result"

    train_on_result: bool = flag(
        False, "Also train a diffusion model on the released images, in model/release/; it costs nothing more."
    )
    diffusion_steps: int = flag(700, "Steps of that model.")

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        """That model, where it is asked for."""
        of_result = OrdinaryTraining(self.diffusion_steps, DIFFUSION_BATCH_SIZE, network=self.network)
        return (of_result,) if self.train_on_result else ()
