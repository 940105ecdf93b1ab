# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Teachers on shares of the images, and a generator that learns from noisy sums of what they say. What they say makes
the method. No torch."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import UsageError
from .flag import expert, flag
from .flags import DPSGDConfig
from .generator_flags import GeneratorFlags
from .method import built


#: What `--aggregation` may be, and whose it is.
AGGREGATIONS = {"gradients": "gs_wgan", "votes": "pate_gan", "signs": "datalens", "bins": "g_pate"}
#: Flags of DP-SGD that say nothing to teachers.
_OF_SAMPLES = (
    "train_batch_size", "sample_rate", "noise_bands", "noise_multiplicity",
    "max_physical_batch_size", "mixed_precision",
)  # fmt: skip


@dataclass
class TeacherConfig(GeneratorFlags, DPSGDConfig):
    """What the methods of `training/train_teachers.py` share."""

    _argument_group_name = "teachers"

    aggregation: str = flag(
        "gradients", "What a teacher says of generated images, which makes the method.", choices=tuple(AGGREGATIONS)
    )
    num_teachers: int = flag(1000, "Teachers, each on a share of the images of its own.")
    #: Hidden units of a teacher, and the standard deviation of noise on images in [-1, 1] before teachers see them.
    teacher_width: ClassVar[int] = 32
    teacher_noise: ClassVar[float] = 0.5
    #: Largest entries of an image's gradient whose signs a teacher tells; numbers that it is projected to for bins.
    signs_per_image: ClassVar[int] = 10
    projected_values: ClassVar[int] = 20
    teacher_steps: int = flag(2, "Steps of each teacher in each round (--max_train_steps is the number of rounds).")
    first_teacher_steps: int = expert(40, "Further steps of each teacher before the first round.", at_least=0)
    teacher_batch_size: int = expert(16, "Images of such a step, drawn from the teacher's share.")
    teacher_learning_rate: float = expert(1e-3, "Learning rate of the teachers.")
    teacher_resolution: int | None = expert(
        None, "Side of the images that teachers see; unset: half of --resolution, if it is even."
    )
    generated_per_round: int = flag(50, "Generated images that all teachers judge in a round.")
    generator_steps: int = flag(3, "Generator steps in a round, all along the same noisy answer.")
    mode_seeking: float = expert(0.5, "Weight of a term that keeps two images of a class apart.", at_least=0)
    bins_per_value: int = expert(10, "With bins: bins of such a number, for one of which a teacher votes.")

    noise_multiplicity: int = 1
    max_grad_norm: float = 0.1
    max_train_steps: int = 200
    learning_rate: float = 1e-3
    ema_decay: float = 0.95
    adam_beta1: float = 0.5
    generator: str = "residual"

    @property
    def num_shares(self) -> int | None:
        return self.num_teachers

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        return ("generated_per_round", *(("num_generated_images",) if self.generator == "residual" else ()))

    @property
    def side(self) -> int:
        """`--expert teacher_resolution` with its default filled in."""
        side = self.image_shape[1]
        return self.teacher_resolution or (side if side % 2 else side // 2)

    @property
    def told(self) -> tuple[str, ...]:
        own = {"signs": ("signs_per_image",), "bins": ("projected_values", "bins_per_value")}
        return (
            "aggregation", "num_teachers", "teacher_steps", "first_teacher_steps", "teacher_batch_size",
            "teacher_width", "teacher_learning_rate", "teacher_noise", "generated_per_round", "generator_steps",
            "mode_seeking", *self.told_of_generator, "learning_rate", "ema_decay", *own.get(self.aggregation, ()),
        )  # fmt: skip

    @property
    def training_facts(self) -> dict[str, Any]:
        return super().training_facts | {"teacher_resolution": self.side}

    def check(self) -> None:
        for name in _OF_SAMPLES:
            if getattr(self, name) != getattr(TeacherConfig, name):
                raise UsageError(
                    f"--{name} has no effect: every teacher answers in each round, and nothing is sampled; leave it "
                    "out."
                )
        if self.aggregation != "gradients" and self.max_grad_norm != TeacherConfig.max_grad_norm:
            raise UsageError(
                f"--max_grad_norm has no effect with --aggregation {self.aggregation}, whose vectors have one norm: "
                "leave it out."
            )
        if self.is_exact:
            raise UsageError("--noise exact has no proof for teachers: leave it out.")
        if self.image_shape[1] % self.side:
            raise UsageError(
                f"--expert teacher_resolution={self.teacher_resolution} does not divide --resolution "
                f"{self.image_shape[1]}: give a divisor."
            )
        if self.aggregation == "signs" and self.signs_per_image > self.image_shape[0] * self.side**2:
            raise UsageError(
                f"--aggregation signs tells {self.signs_per_image} signs of each image, and teachers see "
                f"{self.image_shape[0] * self.side**2} values: give a larger --resolution."
            )


@dataclass
class GSWGANConfig(TeacherConfig):
    """With gradients at the generated images, clipped together."""

    method: ClassVar[str] = "gs_wgan"


@dataclass
class PATEGANConfig(TeacherConfig):
    """With votes for real or generated."""

    method: ClassVar[str] = "pate_gan"
    aggregation: str = "votes"

    @property
    def num_votes(self) -> int | None:
        return self.generated_per_round


@dataclass
class DataLensConfig(TeacherConfig):
    """With the signs of the largest entries of a gradient."""

    method: ClassVar[str] = "datalens"
    aggregation: str = "signs"

    @property
    def answer_norm(self) -> float:
        return math.sqrt(self.generated_per_round * self.signs_per_image)


@dataclass
class GPATEConfig(TeacherConfig):
    """With votes for the bins of a projected gradient."""

    method: ClassVar[str] = "g_pate"
    aggregation: str = "bins"

    @property
    def num_votes(self) -> int | None:
        return self.generated_per_round * self.projected_values


METHODS = tuple(
    built(
        config, train="diffusers_dp.training.train_teachers:train", build="diffusers_dp.training.train_teachers:build"
    )
    for config in (GSWGANConfig, PATEGANConfig, DataLensConfig, GPATEConfig)
)
